// Training runs on the GPU against the same runs on the CPU, and against themselves.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/ops/gemm.h"
#include "tera/tensor/arena.h"
#include "tests/end_to_end/packed_documents.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

const Overrides on_cpu{"dist.device=cpu", "mixed_precision.precision=fp32"};
const Overrides on_gpu{"dist.device=cuda", "mixed_precision.precision=fp32"};
const Overrides on_gpu_bf16{"dist.device=cuda", "mixed_precision.precision=bf16"};
const Overrides on_gpu_fp16{"dist.device=cuda", "mixed_precision.precision=fp16"};

// The quickstart, smaller: a Llama that learns this project's documentation, byte by byte. The learning rate is one at
// which rounding does not grow: bf16 on the CPU stays within 0.1 % of fp32; at 2e-3 it strays by more than 1 %.
const Overrides small_llama{"model.hidden_size=128",
                            "model.ffn_hidden_size=320",
                            "model.num_attention_heads=2",
                            "model.num_query_groups=1",
                            "model.vocab_size=512",
                            "train.seq_length=128",
                            "train.micro_batch_size=8",
                            "train.global_batch_size=16",
                            "train.eval_iters=0",
                            "optimizer.lr=5e-4",
                            "optimizer.min_lr=1e-4",
                            "optimizer.adam_beta2=0.95",
                            "optimizer.weight_decay=0.1",
                            "scheduler.lr_warmup_iters=20",
                            "dataset.kind=text",
                            "dataset.split='100,0,0'",
                            "dataset.data_path=" + source_path("docs")};

const Overrides bf16_moments{"optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16",
                             "optimizer.adam_beta2=0.95"};

void expect_close(const RunRecord& gpu, const RunRecord& cpu, double tolerance, const std::string& what) {
  ASSERT_EQ(gpu.loss.size(), cpu.loss.size()) << what;
  double worst = 0;
  for (std::size_t i = 0; i < cpu.loss.size(); ++i) {
    EXPECT_NEAR(gpu.loss[i], cpu.loss[i], tolerance * cpu.loss[i]) << what << ", step " << i + 1;
    worst = std::max(worst, std::abs(gpu.loss[i] / cpu.loss[i] - 1));
  }
  testing::Test::RecordProperty("worst", std::to_string(worst));
}

TEST(CudaTraining, PackedDocumentsTrainAsEachWouldAlone) {
  for (const char* config : {"tiny", "tiny_gpt", "tiny_mistral"}) {
    const auto [packed, apart, mixed] =
        run_documents(config, on_gpu + Overrides{"model.hidden_dropout=0", "model.attention_dropout=0"});
    EXPECT_NEAR(packed.loss, apart.loss, 1e-5 * apart.loss) << config;
    EXPECT_NEAR(packed.eval_loss, apart.eval_loss, 1e-5 * apart.eval_loss) << config;
    EXPECT_LT(difference(packed.gradients, apart.gradients), 1e-5) << config;
    EXPECT_GT(difference(mixed.gradients, apart.gradients), 1e-2) << config;
  }
}

// Attention uses cuDNN, whose plans are made for several numbers of documents: texts of a few hundred bytes.
double largest_distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(CudaTraining, PackedDocumentsInBf16FollowTheCpu) {
  const Overrides run = small_llama + Overrides{"train.train_iters=30",
                                                "dataset.reset_attention_mask=true",
                                                "dataset.reset_position_ids=true",
                                                "tokenizer.tokenizer_type=ByteTokenizer",
                                                "dataset.kind=mock",
                                                "dataset.data_path=[]",
                                                "dataset.split='1'"};
  const RunRecord gpu = train_once("tiny", run + on_gpu_bf16), cpu = train_once("tiny", run + on_cpu);
  expect_close(gpu, cpu, 0.01, "packed, bf16");
  // A run that looks over the ends of documents is farther away than rounding takes this one.
  const RunRecord mixed = train_once("tiny", run + Overrides{"dataset.reset_attention_mask=false"} + on_cpu);
  EXPECT_GT(largest_distance(mixed.loss, cpu.loss), 5 * largest_distance(gpu.loss, cpu.loss));
}

TEST(CudaTraining, Bf16FollowsTheCpuAndRepeatsItself) {
  const TempFolder folder;
  // Choices by timing are part of a run; the second run finds those of the first.
  const BackendOptions options{.kernel_choices = folder / "kernels.json"};
  const Overrides run = small_llama + Overrides{"train.train_iters=200"};
  const RunRecord cpu = train_once("tiny", run + on_cpu);
  const RunRecord gpu = train_once("tiny", run + on_gpu_bf16, options);
  EXPECT_LT(cpu.loss.back(), 0.6 * cpu.loss.front()) << "there is nothing to follow";
  expect_close(gpu, cpu, 0.01, "bf16");
  const RunRecord again = train_once("tiny", run + on_gpu_bf16, options);
  EXPECT_EQ(gpu.loss, again.loss);
  EXPECT_EQ(gpu.grad_norm, again.grad_norm);
  EXPECT_TRUE(gpu.weights == again.weights);
}

// Steps skipped at first cost steps, not bits: with the right initial scale none is skipped.
TEST(CudaTraining, Fp16FollowsBf16AndRepeatsItself) {
  const TempFolder folder;
  const BackendOptions options{.kernel_choices = folder / "kernels.json"};
  const Overrides run = small_llama + Overrides{"train.train_iters=200", "mixed_precision.initial_loss_scale=8192"};
  const RunRecord bf16 = train_once("tiny", run + on_gpu_bf16), fp16 = train_once("tiny", run + on_gpu_fp16, options);
  EXPECT_LT(bf16.loss.back(), 0.6 * bf16.loss.front()) << "there is nothing to follow";
  expect_close(fp16, bf16, 0.01, "fp16");
  EXPECT_EQ(std::count(fp16.skipped.begin(), fp16.skipped.end(), true), 0);
  EXPECT_EQ(fp16, train_once("tiny", run + on_gpu_fp16, options));
}

// The scale falls from the default of 2^32; the host learns of each skipped step when the next one is in flight.
TEST(CudaTraining, Fp16FindsItsScale) {
  const Overrides run =
      small_llama + on_gpu_fp16 +
      Overrides{"train.train_iters=60", "scheduler.lr_warmup_iters=10", "mixed_precision.loss_scale_window=8"};
  const TempFolder folder;
  const BackendOptions options{.kernel_choices = folder / "kernels.json"};
  const RunRecord late = train_once("tiny", run, options);
  const auto skips = std::count(late.skipped.begin(), late.skipped.end(), true);
  EXPECT_GT(skips, 4);
  EXPECT_LT(skips, 40);
  double updates = 0, scale = 0x1p32;
  int good = 0, left = 2;
  for (std::size_t i = 0; i < late.loss.size(); ++i) {
    EXPECT_EQ(late.skipped[i], !std::isfinite(late.grad_norm[i])) << "step " << i + 1;
    if (updates <= 10) {
      EXPECT_NEAR(late.lr[i], 5e-4 * updates / 10, 1e-12) << "step " << i + 1;
    }
    good = late.skipped[i] ? 0 : good + 1;
    if (late.skipped[i] && --left <= 0) scale /= 2;
    if (!late.skipped[i]) ++updates;
    if (good == 8) {
      scale *= 2;
      good = 0;
      left = 2;
    }
    EXPECT_EQ(late.loss_scale[i], scale) << "step " << i + 1;
  }
  EXPECT_LT(late.loss.back(), 0.9 * late.loss.front());
  const RunRecord at_once = train_once("tiny", run, options, Reporting::at_once);  // norms of skipped steps may be NaN
  EXPECT_EQ(late.lr, at_once.lr);
  EXPECT_EQ(late.loss, at_once.loss);
  EXPECT_EQ(late.loss_scale, at_once.loss_scale);
  EXPECT_TRUE(late.weights == at_once.weights);
}

TEST(CudaTraining, Fp32FollowsTheCpuClosely) {
  const Overrides run = small_llama + Overrides{"train.train_iters=30"};
  expect_close(train_once("tiny", run + on_gpu), train_once("tiny", run + on_cpu), 1e-4, "fp32");
}

// TF32 rounds the operands of GEMMs to 10 bits of mantissa: near fp32, but not it.
// The largest relative error of a GEMM in fp32. All operands are small integers times 1 + 2^-12, which rounded to 10
// bits of mantissa lose that factor.
double gemm_error(bool tf32) {
  constexpr std::int64_t m = 128, n = 128, k = 256;
  const cuda::CudaParts parts = cuda::make_cuda({.tf32 = tf32});
  const std::unique_ptr<WorkspaceRules> rules = cuda::make_cuda_workspace_rules();
  std::vector<float> a(m * k), b(n * k), out(m * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(1 + i % 7) * (1 + 0x1p-12f);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(1 + i % 5) * (1 + 0x1p-12f);
  Arena arena(parts.device->allocate((a.size() + b.size() + out.size()) * 4 + 1024), "product", false);
  const GemmArgs args{.a = arena.take(shape(m, k), DType::f32, "a"),
                      .b = arena.take(shape(n, k), DType::f32, "b"),
                      .out = arena.take(shape(m, n), DType::f32, "out"),
                      .bias = {},
                      .residual = {},
                      .trans_b = true};
  parts.ops->bind_workspace(parts.device->allocate(rules->workspace(args)));
  parts.ops->from_host(std::as_bytes(std::span(a)), args.a);
  parts.ops->from_host(std::as_bytes(std::span(b)), args.b);
  (*parts.ops)(args);
  parts.ops->to_host(args.out, std::as_writable_bytes(std::span(out)));
  double largest = 0;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      double exact = 0;
      for (std::size_t at = 0; at < k; ++at)
        exact += static_cast<double>(a[i * k + at]) * static_cast<double>(b[j * k + at]);
      largest = std::max(largest, std::abs(static_cast<double>(out[i * n + j]) - exact) / exact);
    }
  return largest;
}

TEST(CudaTraining, Tf32IsUsedOnlyWhenAsked) {
  EXPECT_LT(gemm_error(false), 256 * 0x1p-24);  // a rounding for each of 256 terms, all positive
  EXPECT_NEAR(gemm_error(true), 0x1p-11, 0x1p-12);
  const Overrides run = small_llama + on_gpu + Overrides{"train.train_iters=5", "scheduler.lr_warmup_iters=2"};
  const RunRecord exact = train_once("tiny", run), rounded = train_once("tiny", run, {.tf32 = true});
  EXPECT_NE(exact.weights, rounded.weights);
  expect_close(rounded, exact, 2e-3, "tf32");
}

TEST(CudaTraining, WithoutDeterminismOnlyTheLastBitsMayDiffer) {
  const Overrides run = small_llama + on_gpu_bf16 + Overrides{"train.train_iters=30", "train.deterministic=false"};
  const Overrides same = small_llama + on_gpu_bf16 + Overrides{"train.train_iters=30"};
  expect_close(train_once("tiny", run, {.deterministic = false}), train_once("tiny", same), 5e-3,
               "deterministic=false");
}

// Activations on the host and back change no bit. Sizes at which copies take as long as computing, so that one that is
// not waited for shows.
TEST(CudaTraining, OffloadChangesNoBit) {
  const Overrides sizes{"model.num_layers=6",          "model.hidden_size=512",      "model.ffn_hidden_size=2048",
                        "model.num_attention_heads=8", "model.num_query_groups=4",   "train.seq_length=512",
                        "train.micro_batch_size=4",    "train.global_batch_size=16", "train.train_iters=6",
                        "scheduler.lr_warmup_iters=2"};
  const Overrides all{"model.offload_modules=[attn_norm,attention,mlp_norm,mlp]"};
  const Overrides full{"model.recompute_granularity=full"},
      selective{"model.recompute_granularity=selective", "model.recompute_modules=[layernorm,activation]"};
  const Overrides experts{"model.arch=qwen3_moe", "model.moe.num_experts=8", "model.moe.ffn_hidden_size=1024",
                          "model.moe.router_topk=2", "model.moe.shared_expert_intermediate_size=512"};
  const std::vector<std::pair<Overrides, Overrides>> cases{
      {{}, all},
      {experts, all},
      {{}, {"model.offload_modules=[core_attn]"}},
      {full, {"model.offload_modules=[attn_norm]"}},
      {selective, {"model.offload_modules=[attn_norm,attention,mlp]"}}};
  for (const Overrides& precision : {on_gpu, on_gpu_bf16}) {
    const TempFolder folder;
    const BackendOptions options{.kernel_choices = folder / "kernels.json"};
    for (const auto& [base, offload] : cases) {
      const Overrides run = small_llama + sizes + precision + base;
      const RunRecord kept = train_once("tiny", run, options), offloaded = train_once("tiny", run + offload, options);
      EXPECT_EQ(kept.loss, offloaded.loss) << offload[0] << ", " << precision[1];
      EXPECT_EQ(kept.grad_norm, offloaded.grad_norm) << offload[0] << ", " << precision[1];
      EXPECT_TRUE(kept.weights == offloaded.weights) << offload[0] << ", " << precision[1];
    }
  }
}

void expect_to_follow_the_cpu(const std::vector<std::pair<std::string, Overrides>>& runs) {
  for (const auto& [config, more] : runs) {
    const RunRecord cpu = train_once(config, more + on_cpu), gpu = train_once(config, more + on_gpu);
    expect_close(gpu, cpu, 1e-4, config);
    ASSERT_EQ(gpu.eval_loss.size(), cpu.eval_loss.size());
    for (std::size_t i = 0; i < cpu.eval_loss.size(); ++i)
      EXPECT_NEAR(gpu.eval_loss[i], cpu.eval_loss[i], 1e-4 * cpu.eval_loss[i]) << config;
  }
}

const Overrides dropout{"model.hidden_dropout=0.2", "model.attention_dropout=0.1"};

TEST(CudaTraining, DenseModelsAndExpertsFollowTheCpu) {
  const Overrides some_steps{"train.train_iters=5"};
  expect_to_follow_the_cpu({{"tiny", some_steps}, {"tiny_gpt", some_steps + dropout}, {"tiny_mixtral", some_steps}});
}

// Every kind of block, with the same dropout masks on both.
TEST(CudaTraining, EveryFamilyFollowsTheCpu) {
  expect_to_follow_the_cpu({{"tiny", {}},
                            {"tiny_gpt", {}},
                            {"tiny_gpt", dropout},
                            {"tiny_mistral", {}},
                            {"tiny_qwen2", {}},
                            {"tiny_qwen3", {}},
                            {"tiny", {"model.mtp_num_layers=2"}},
                            {"tiny_mla", {}},
                            {"tiny_mla", {"model.mla.q_lora_rank=0"}},
                            {"tiny", {"optimizer.optimizer=sgd", "optimizer.lr=0.1"}},
                            {"tiny", bf16_moments},
                            {"tiny", {"model.recompute_granularity=full"}}});
}

}  // namespace
}  // namespace tera::test
