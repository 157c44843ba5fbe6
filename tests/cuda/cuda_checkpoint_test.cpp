// A run on the GPU that is saved and resumed has the same bits, through pinned memory and in the background.

#include <gtest/gtest.h>

#include <algorithm>

#include "tera/checkpoint/checkpoint.h"
#include "tests/end_to_end/program.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

class CudaCheckpoint : public testing::Test {
 protected:
  void run(const std::string& name, const std::string& saved, int steps, const Overrides& more) const {
    const Overrides overrides{"dist.device=cuda",
                              "run.dir=" + (folder_ / name).string(),
                              "checkpoint.save=" + (folder_ / saved).string(),
                              "train.train_iters=" + std::to_string(steps),
                              "scheduler.lr_decay_iters=30",
                              "train.eval_iters=0",
                              "model.hidden_dropout=0.1"};
    train(load_setup("tiny", overrides + more));
  }
  std::vector<std::string> losses(const std::string& name) const { return column(folder_ / name, "loss"); }

  TempFolder folder_;
};

// fp16 begins with steps that overflow.
TEST_F(CudaCheckpoint, ResumeIsBitwise) {
  struct Case {
    const char *async, *precision;
    std::string moments;
  };
  for (const auto& [async, precision, moments] :
       {Case{"true", "bf16", "fp32"}, Case{"false", "bf16", "bf16"}, Case{"true", "fp16", "bf16"}}) {
    const Overrides more{std::string("mixed_precision.precision=") + precision,
                         std::string("checkpoint.async_save=") + async,
                         "checkpoint.save_interval=4",
                         "optimizer.exp_avg_dtype=" + moments,
                         "optimizer.exp_avg_sq_dtype=" + moments,
                         "mixed_precision.initial_loss_scale=4194304",
                         "mixed_precision.loss_scale_window=6"};
    const std::string id = std::string(async) + precision;
    run(id + "whole", id + "whole-saved", 20, more);
    fs::create_directories(folder_ / (id + "first"));
    fs::copy(folder_ / (id + "whole/kernels.json"), folder_ / (id + "first/kernels.json"));
    run(id + "first", id + "parts-saved", 10, more);
    run(id + "second", id + "parts-saved", 20, more);  // another folder: kernel choices come from the checkpoint
    std::vector<std::string> parts = losses(id + "first");
    for (const std::string& loss : losses(id + "second")) parts.push_back(loss);
    EXPECT_EQ(parts, losses(id + "whole"));
    const auto skipped = column(folder_ / (id + "whole"), "skipped");
    EXPECT_EQ(std::count(skipped.begin(), skipped.end(), "true") > 0, id == "truefp16");
    const Checkpoint uninterrupted(folder_ / (id + "whole-saved")), again(folder_ / (id + "parts-saved"));
    again.verify();
    EXPECT_TRUE(uninterrupted.source().loss_scale == again.source().loss_scale);
    EXPECT_EQ(uninterrupted.source().updates, again.source().updates);
    CheckpointReader a(uninterrupted), b(again);
    for (const auto& tensor : uninterrupted.manifest().tensors)
      EXPECT_TRUE(a.read_floats(tensor.first) == b.read_floats(tensor.first)) << tensor.first;
  }
}

}  // namespace
}  // namespace tera::test
