#include "tests/end_to_end/packed_documents.h"

#include <algorithm>
#include <cmath>

#include "tera/data/batching/prefetch.h"

namespace tera::test {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int32_t eod = 0;

// Lengths of documents by sequence: equal sums, uneven parts.
const std::vector<std::vector<int>> lengths{{5, 7}, {12}, {1, 10, 1}, {3, 1, 1, 7}};

// Two microbatches of two sequences.
std::vector<std::vector<Ids>> make_documents() {
  std::vector<std::vector<Ids>> sequences;
  std::int32_t next = 7;
  for (const auto& parts : lengths) {
    sequences.emplace_back();
    for (const int length : parts) {
      Ids ids;
      for (int i = 0; i + 1 < length; ++i) ids.push_back(1 + (next = (next * 31 + 17) % 59));
      ids.push_back(eod);
      sequences.back().push_back(ids);
    }
  }
  return sequences;
}

class FixedSamples final : public Dataset {
 public:
  explicit FixedSamples(std::vector<Ids> samples) : samples_(std::move(samples)) {}
  std::int64_t samples() const override { return std::ssize(samples_); }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    std::ranges::fill(tokens, -1);
    std::ranges::copy(samples_[static_cast<std::size_t>(index)], tokens.begin());
  }
  bool has_gaps() const override { return true; }

 private:
  std::vector<Ids> samples_;
};

std::vector<float> read_gradients(TrainingStep& step, Ops& ops) {
  std::vector<float> all;
  for (const Param* param : step.params().by_name())
    for (const Part& part : param->spec.parts) {
      const std::vector<float> values = read_part(ops, param->grad, part);
      all.insert(all.end(), values.begin(), values.end());
    }
  return all;
}

LossAndGradients run_step(const std::string& config, const Overrides& overrides, std::vector<Ids> samples) {
  const auto number = std::to_string(samples.size());
  const tera::Setup setup = load_setup(
      config, Overrides{"train.seq_length=12", "model.max_position_embeddings=12", "train.micro_batch_size=2",
                        "train.global_batch_size=" + number, "train.eval_iters=0", "dataset.reset_position_ids=true",
                        "dataset.eod_mask_loss=true"} +
                  overrides);
  const FixedSamples data(std::move(samples));
  Backend backend = make_backend(setup.config.dist);
  TrainingStep step(setup);
  step.bind(backend);
  BatchOptions options = batch_options(setup, nullptr);
  options.eod = eod;
  const auto load = [&] {
    Prefetch batches({BatchSource{&data}},
                     std::make_unique<TrainJobs>(TrainJobs::Options{.steps = 1, .batch = setup.batch}),
                     {.batch = options});
    for (std::int64_t i = 0; i < setup.batch.num_microbatches; ++i) step.load(i, batches.next().rows, 0.1f);
  };
  LossAndGradients result;
  load();
  result.eval_loss = step.evaluate().loss_sum;
  step.forward_backward();
  result.gradients = read_gradients(step, *backend.ops);
  result.loss = step.result(step.read_back()).number("loss_sum");
  return result;
}

}  // namespace

PackedDocuments run_documents(const std::string& config, const Overrides& overrides) {
  std::vector<Ids> together, apart;
  for (const auto& sequence : make_documents()) {
    together.emplace_back();
    for (const Ids& document : sequence) {
      together.back().insert(together.back().end(), document.begin(), document.end());
      apart.push_back(document);
    }
  }
  const Overrides packed{"dataset.reset_attention_mask=true"};
  return {.packed = run_step(config, overrides + packed, together),
          .apart = run_step(config, overrides, apart),
          .mixed = run_step(config, overrides, together)};
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity(), largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return worst / largest;
}

}  // namespace tera::test
