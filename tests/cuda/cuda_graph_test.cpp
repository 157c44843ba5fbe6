// A step replayed as one CUDA graph gives the bits of the step run call by call.

#include <gtest/gtest.h>

#include <bit>

#include "tera/base/signals.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

const Overrides on_gpu{"dist.device=cuda", "train.train_iters=8"}, by_calls{"train.cuda_graph_impl=none"};

// Bit for bit: the norm of a step that is skipped is no number.
std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

// The results of the given number of steps.
std::string remark_of(const std::string& config, const Overrides& overrides) {
  const Setup setup = load_setup(config, overrides);
  Backend backend = make_backend(setup.config.dist);
  TrainingStep step(setup);
  step.bind(backend);
  std::string remarks;
  for (int i = 0; i < 4; ++i) {
    step.run(1e-3);
    remarks += step.take_remark();
  }
  step.result(step.read_back());
  return remarks;
}

void expect_same_bits(const RunRecord& graph, const RunRecord& calls) {
  EXPECT_EQ(graph.loss, calls.loss);
  EXPECT_EQ(bits_of(graph.grad_norm), bits_of(calls.grad_norm));
  EXPECT_EQ(graph.lr, calls.lr);
  EXPECT_EQ(graph.eval_loss, calls.eval_loss);
  EXPECT_EQ(graph.loss_scale, calls.loss_scale);
  EXPECT_EQ(graph.mtp_loss, calls.mtp_loss);
  EXPECT_EQ(graph.skipped, calls.skipped);
  EXPECT_TRUE(graph.weights == calls.weights);
}

constexpr const char* as_a_graph = "steps run as one CUDA graph of ";

void expect_graphs_give_the_bits_of_calls(const std::vector<std::pair<std::string, Overrides>>& runs) {
  for (const auto& [config, more] : runs) {
    SCOPED_TRACE(config + " " + more.front());
    const TempFolder folder;
    const BackendOptions choices{.kernel_choices = folder / "kernels.json"};
    const RunRecord graph = train_once(config, more + on_gpu, choices);
    const RunRecord calls = train_once(config, more + on_gpu + by_calls, choices);
    expect_same_bits(graph, calls);
    EXPECT_NE(remark_of(config, more + on_gpu).find(as_a_graph), std::string::npos) << "it ran call by call";
  }
}

TEST(CudaGraph, GivesTheBitsOfSingleCalls) {
  expect_graphs_give_the_bits_of_calls(
      {{"tiny", {"mixed_precision.precision=bf16", "train.micro_batch_size=1", "train.global_batch_size=4"}},
       {"tiny", {"mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=4194304"}},  // some are skipped
       {"tiny_qwen3_moe", {"mixed_precision.precision=bf16"}}});
}

TEST(CudaGraph, GivesTheBitsOfSingleCallsOfEveryKind) {
  const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};
  expect_graphs_give_the_bits_of_calls(
      {{"tiny", {"mixed_precision.precision=fp32"}},
       {"tiny", {"mixed_precision.precision=bf16", "optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16"}},
       {"tiny_gpt", dropout + Overrides{"mixed_precision.precision=bf16"}},
       {"tiny_qwen3", {"mixed_precision.precision=bf16", "model.recompute_granularity=full"}},
       {"tiny_mistral", {"mixed_precision.precision=fp32", "optimizer.optimizer=sgd", "optimizer.lr=0.1"}},
       {"tiny_deepseek_v3", {"mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=65536"}},
       {"sweep_mtp", {"mixed_precision.precision=bf16"}},
       {"tiny", {"train.eval_interval=3", "train.eval_iters=1", "mixed_precision.precision=bf16"}}});
}

TEST(CudaGraph, SaysOnceHowStepsRun) {
  EXPECT_NE(remark_of("tiny", on_gpu).find(as_a_graph), std::string::npos) << remark_of("tiny", on_gpu);
  EXPECT_EQ(remark_of("tiny", on_gpu + by_calls), "");
  const std::string offloaded = remark_of("tiny", on_gpu + Overrides{"model.offload_modules=[mlp]"});
  EXPECT_EQ(offloaded, "steps run call by call, not as one CUDA graph: offloaded activations travel beside the queue");
}

// While the batch grows, steps make other calls; the whole one is recorded when it comes.
TEST(CudaGraph, GrowingBatchesGiveTheSameBits) {
  const Overrides growing{
      "train.train_iters=0",      "train.train_samples=40",        "train.rampup_batch_size=[2,2,8]",
      "train.micro_batch_size=1", "train.global_batch_size=6",     "scheduler.lr_warmup_iters=0",
      "dist.device=cuda",         "mixed_precision.precision=bf16"};
  const TempFolder folder;
  const BackendOptions choices{.kernel_choices = folder / "kernels.json"};
  const RunRecord graph = train_once("tiny", growing, choices), calls = train_once("tiny", growing + by_calls, choices);
  EXPECT_GT(graph.loss.size(), 5U);
  expect_same_bits(graph, calls);
}

}  // namespace
}  // namespace tera::test
