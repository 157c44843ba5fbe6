#include "tera/train/step/step_feature.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {

StepFeatures::StepFeatures(List features) : features_(std::move(features)) {
  std::ranges::sort(features_, {}, [](const auto& feature) { return feature->order(); });
  const auto same = std::ranges::adjacent_find(features_, {}, [](const auto& feature) { return feature->order(); });
  require(same == features_.end(), "two features of a step have the order {}",
          same == features_.end() ? 0 : (*same)->order());
  each([&](StepFeature& feature) { feature.describe(board_); });
}

void StepFeatures::report(const StepReading& reading, const ReportedStep& step, MetricList& metrics) const {
  each([&](StepFeature& feature) { feature.report(reading, step, metrics); });
  board_.scalars.visit([&](const ScalarSpec& spec) {
    if (spec.logged) metrics.add(spec.name, reading.number(spec.name), spec.console);
  });
}

}  // namespace tera
