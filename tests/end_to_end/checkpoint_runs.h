#pragma once
// Runs of the real program that save and resume.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tera/checkpoint/checkpoint.h"
#include "tests/end_to_end/program.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {

namespace fs = std::filesystem;

struct Layout {
  std::string name;
  int ranks = 1;
  std::string arguments{};
};

inline const std::string cp2 = " dist.context_parallel_size=2";
inline const std::string tp2 = " dist.tensor_model_parallel_size=2", tp4 = " dist.tensor_model_parallel_size=4",
                         pp2 = " dist.pipeline_model_parallel_size=2", pp4 = " dist.pipeline_model_parallel_size=4",
                         zero = " ddp.data_parallel_sharding_strategy=", buckets = " ddp.bucket_size=3000";

inline const std::map<std::string, Layout> layouts = [] {
  std::map<std::string, Layout> all;
  for (const Layout& each : std::vector<Layout>{{"tp1"},
                                                {"tp2", 2, tp2 + " dist.sequence_parallel=true"},
                                                {"tp4", 4, tp4},
                                                {"pp2", 2, pp2 + " dist.virtual_pipeline_model_parallel_size=2"},
                                                {"pp4", 4, pp4},
                                                {"tp2pp2", 4, tp2 + pp2},
                                                {"dp2", 2},
                                                {"dp2zero1", 2, zero + "optim" + buckets},
                                                {"dp4zero3", 4, zero + "optim_grads_params"},
                                                {"cp2", 2, cp2},
                                                {"cp2dp2zero3", 4, cp2 + zero + "optim_grads_params"},
                                                {"tp2pp2dp2", 8, tp2 + pp2 + zero + "optim_grads"}})
    all[each.name] = each;
  return all;
}();

class CheckpointRuns : public testing::Test {
 protected:
  // A learning rate that changes with every step, so that a wrong step would show.
  static constexpr auto schedule =
      "optimizer.lr=3e-3 scheduler.lr_decay_style=cosine scheduler.lr_warmup_iters=3 scheduler.lr_decay_iters=30";

  static std::string config(const std::string& name) { return source_path("configs/tests/") + name + ".yaml"; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Trains in the run folder `run` below this test's folder.
  Outcome train(const std::string& model, const std::string& run, const std::string& arguments) const {
    return run_program(fmt::format("train {} run.dir={} dist.threads=1 dist.timeout_seconds=60 {} {}", config(model),
                                   path(run), schedule, arguments));
  }
  void expect_trained(const std::string& model, const std::string& run, const std::string& arguments) const {
    const Outcome outcome = train(model, run, arguments);
    ASSERT_EQ(outcome.status, 0) << arguments << "\n" << outcome.output;
  }
  void expect_refused(const Outcome& outcome, const std::string& words) const {
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(words), std::string::npos) << outcome.output;
    EXPECT_LE(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 2) << outcome.output;
  }
  std::vector<double> numbers(const std::string& run, const std::string& key) const {
    std::vector<double> values;
    for (const std::string& text : column(folder_ / run, key)) values.push_back(std::stod(text));
    return values;
  }

  // All tensors of the newest checkpoint in a folder, verified.
  using Tensors = std::map<std::string, std::vector<float>>;
  Tensors tensors(const std::string& saved) const {
    const Checkpoint checkpoint(folder_ / saved);
    checkpoint.verify();
    CheckpointReader reader(checkpoint);
    Tensors all;
    for (const auto& tensor : checkpoint.manifest().tensors) all[tensor.first] = reader.read_floats(tensor.first);
    return all;
  }
  static std::string on(const Layout& layout) {
    return layout.ranks == 1 ? "" : fmt::format("--ranks {} {}", layout.ranks, layout.arguments);
  }

  TempFolder folder_;
};

}  // namespace tera::test
