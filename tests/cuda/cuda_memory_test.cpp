// After binding, a run allocates no memory: neither by our calls (counted) nor by the libraries' (free memory of the
// GPU).

#include <gtest/gtest.h>

#include "tera/base/signals.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/count_gpu_allocations.h"
#include "tests/support/gpu.h"

namespace tera::test {
namespace {

// The memory allocated between the reports of two steps. On a GPU a step is reported when the next one has been
// enqueued.
class MemorySink final : public MetricsSink {
 public:
  MemorySink(Device& device, std::int64_t first, std::int64_t last) : device_(device), first_(first), last_(last) {}
  void step(const StepMetrics& metrics) override {
    const auto sign = metrics.step == last_ ? 1 : metrics.step == first_ ? -1 : 0;
    calls += sign * gpu_allocations();
    bytes -= sign * static_cast<std::int64_t>(device_.available());
    steps += 1;
  }
  void eval(const EvalMetrics&) override {}

  std::int64_t calls = 0, bytes = 0, steps = 0;

 private:
  Device& device_;
  std::int64_t first_, last_;
};

TEST(CudaMemory, TheCounterCounts) {
  gpu_device();  // allocates memory of its own when it is made
  const std::int64_t before = gpu_allocations();
  EXPECT_FALSE(gpu_device().allocate(1).empty());
  EXPECT_EQ(gpu_allocations(), before + 1);
  EXPECT_FALSE(gpu_device().allocate_host(1).empty());
  EXPECT_EQ(gpu_allocations(), before + 2);
}

TEST(CudaMemory, StepsAllocateNone) {
  const std::vector<std::string> more[] = {
      {"mixed_precision.precision=bf16"},
      {"mixed_precision.precision=fp16"},
      {"mixed_precision.precision=fp32", "model.recompute_granularity=full"},
      {"mixed_precision.precision=bf16", "model.offload_modules=[attn_norm,attention,mlp_norm,mlp]",
       "train.micro_batch_size=1", "train.global_batch_size=4"},
      {"mixed_precision.precision=bf16", "model.hidden_size=256", "model.ffn_hidden_size=512", "train.seq_length=256"}};
  for (const auto& overrides : more) {
    std::vector<std::string> all{"dist.device=cuda", "train.train_iters=5", "train.eval_iters=0"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const tera::Setup setup = load_setup("tiny", all);
    StopRequest stop;
    Log log({.console = -1});
    Backend backend = make_backend(setup.config.dist);
    Trainer trainer(setup, backend, make_data_source(setup), log);
    auto sink = std::make_unique<MemorySink>(*backend.device, 1, 4);
    const MemorySink& taken = *sink;
    trainer.add_sink(std::move(sink));
    trainer.run(stop);
    EXPECT_EQ(taken.steps, 5);
    EXPECT_EQ(taken.calls, 0) << overrides[0];
    EXPECT_EQ(taken.bytes, 0) << overrides[0];
  }
}

}  // namespace
}  // namespace tera::test
