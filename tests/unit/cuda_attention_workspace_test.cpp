// Which calls of attention go to cuDNN, how its backward is cut, and what the plan reserves: formulas, no GPU.

#include <gtest/gtest.h>

#include "tera/backend/cuda/attention_remarks.h"
#include "tera/backend/cuda/attention_workspace.h"
#include "tera/backend/cuda/kernels/hopper/hopper_attention_workspace.h"
#include "tera/backend/cuda/workspace.h"

namespace tera::cuda {
namespace {

constexpr double GiB = 1 << 30;

Tensor at(std::uintptr_t address, const Shape& shape, DType dtype) {
  return make_tensor(reinterpret_cast<void*>(address), shape, dtype);  // NOLINT: never touched
}

// [Q | K | V] rows of `batch` sequences of length S, and gradients packed the same way.
AttentionBackArgs packed(std::int64_t batch, std::int64_t S, std::int64_t N, std::int64_t G, std::int64_t D,
                         DType dtype = DType::bf16) {
  const std::int64_t T = batch * S;
  const Tensor rows = at(1 << 20, shape(T, N + 2 * G, D), dtype), out = at(1 << 21, shape(T, N, D), dtype);
  AttentionBackArgs args;
  args.q = args.dq = rows.slice(1, 0, N);
  args.k = args.dk = rows.slice(1, N, N + G);
  args.v = args.dv = rows.slice(1, N + G, N + 2 * G);
  args.out = args.dout = out;
  args.lse = at(1 << 22, shape(N, T), DType::f32);
  args.shape = {.batch = batch, .scale = 0.125f};
  return args;
}

TEST(CudaAttentionWorkspace, LongSequencesAreCutToBoundTheScores) {
  const auto slices = [](const AttentionBackArgs& args, bool deterministic = true) {
    const AttentionSlices found = attention_back_slices(args, deterministic);
    return std::pair(found.sequences, found.kv_heads);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(slices(packed(4, 4096, 32, 8, 64)), Pair(1, 8));     // 32 heads of 32 MiB
  EXPECT_EQ(slices(packed(32, 1024, 12, 2, 128)), Pair(32, 2));  // all fit
  EXPECT_EQ(slices(packed(1, 16384, 32, 8, 128)), Pair(1, 1));   // a group is the least
  EXPECT_EQ(slices(packed(2, 8192, 16, 8, 128)), Pair(1, 4));
  EXPECT_EQ(slices(packed(6, 2048, 16, 8, 128)), Pair(6, 8));   // 6 x 16 heads of 8 MiB
  EXPECT_EQ(slices(packed(12, 2048, 16, 8, 128)), Pair(6, 8));  // 8 would fit, but do not divide 12
  EXPECT_EQ(slices(packed(4, 4096, 32, 8, 64), false), Pair(4, 8));
}

TEST(CudaAttentionWorkspace, PlansReserveWhatTheFormulasSay) {
  const AttentionBackArgs args = packed(4, 4096, 32, 8, 64);
  const auto bytes = [&](bool deterministic) {
    return static_cast<double>(CudaWorkspaceRules(deterministic).workspace(args)) / GiB;
  };
  EXPECT_GT(bytes(true), 1.0);    // scores of one sequence
  EXPECT_LT(bytes(true), 1.1);    // dk and dv of every head, sums, lse
  EXPECT_GT(bytes(false), 0.24);  // dq in fp32 and, of every query head, dk and dv
  EXPECT_LT(bytes(false), 0.30);
  const AttentionBackArgs exact = packed(4, 4096, 32, 8, 64, DType::f32);
  EXPECT_EQ(CudaWorkspaceRules().workspace(exact), std::size_t{32 * 4 * 4096 * 4});  // delta alone
}

TEST(CudaAttentionWorkspace, HopperHasKernelsForTheDefaultBackward) {
  const auto supported = [](AttentionBackArgs args, auto change) {
    change(args);
    return hopper_supports(args);
  };
  const auto same = [](AttentionBackArgs&) {};
  const AttentionBackArgs good = packed(2, 256, 4, 2, 64);
  EXPECT_TRUE(supported(good, same));
  EXPECT_TRUE(supported(packed(1, 131072, 32, 8, 128, DType::f16), same));
  EXPECT_TRUE(supported(packed(3, 5, 4, 2, 64), same));
  EXPECT_FALSE(supported(packed(2, 256, 4, 2, 80), same));
  EXPECT_FALSE(supported(packed(2, 256, 4, 2, 64, DType::f32), same));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) { args.shape.mask = Mask::full; }));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) { args.shape.window = 10; }));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) { args.shape.dropout = 0.1f; }));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) { args.shape.values = 32; }));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) { args.k = args.k.rows(0, 256); }));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) { args.dq.stride[0] += 4; }));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) {
    args.shape.q_offsets = args.shape.k_offsets = at(1 << 23, shape(3), DType::i32);
  }));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) {
    args.shape.q_positions = args.shape.k_positions = at(1 << 23, shape(512), DType::i32);
  }));
}

TEST(CudaAttentionWorkspace, HopperIsUsedForBackwardsThatKeepItBusy) {
  EXPECT_TRUE(hopper_is_profitable(packed(4, 4096, 32, 8, 64)));
  EXPECT_TRUE(hopper_is_profitable(packed(1, 4096, 32, 8, 128)));  // 16 x 8 units
  EXPECT_TRUE(hopper_is_profitable(packed(1, 4096, 8, 1, 128)));   // 16, each for one of 8 query heads
  EXPECT_TRUE(hopper_is_profitable(packed(1, 4096, 4, 1, 128)));   // 16 x 4
  EXPECT_FALSE(hopper_is_profitable(packed(1, 4096, 3, 1, 128)));
  EXPECT_FALSE(hopper_is_profitable(packed(2, 512, 16, 4, 128)));  // 64 short units are not enough
  EXPECT_TRUE(hopper_is_profitable(packed(3, 512, 16, 4, 128)));
  EXPECT_TRUE(hopper_is_profitable(packed(1, 1024, 4, 1, 64)));  // 16
  EXPECT_FALSE(hopper_is_profitable(packed(1, 1024, 3, 1, 64)));
  EXPECT_TRUE(hopper_is_profitable(packed(96, 128, 4, 1, 64)));
  EXPECT_FALSE(hopper_is_profitable(packed(4096, 8, 32, 8, 128)));  // would be filled up to 128 rows
  EXPECT_FALSE(hopper_is_profitable(packed(4, 4096, 32, 8, 80)));
}

// Query heads that share keys are split over as few units as suffice to fill the GPU.
TEST(CudaAttentionWorkspace, HopperSplitsQueryHeadsOfFewKeys) {
  const auto head_splits = [](std::int64_t sequences, std::int64_t rows, std::int64_t heads, std::int64_t kv_heads) {
    return kernels::HopperAttentionSizes{sequences, rows, heads, kv_heads, 128}.head_splits();
  };
  EXPECT_EQ(head_splits(4, 4096, 32, 8), 1);
  EXPECT_EQ(head_splits(1, 4096, 24, 6), 1);   // 96 pairs of tiles
  EXPECT_EQ(head_splits(1, 4096, 16, 4), 2);   // 64
  EXPECT_EQ(head_splits(4, 1024, 12, 2), 3);   // 32, groups of 6
  EXPECT_EQ(head_splits(1, 4096, 8, 1), 8);    // 16: six would be enough, but 8 heads do not divide by six
  EXPECT_EQ(head_splits(1, 1024, 7, 1), 7);    // never enough
  EXPECT_EQ(head_splits(1, 1024, 16, 16), 1);  // nothing to split
}

// dq in fp32 once, and once more for the later half of the keys; two numbers of each row; counts of finished additions;
// dk and dv in fp32 of each split of the query heads, where there are several.
TEST(CudaAttentionWorkspace, HopperKeepsGradientsInFp32) {
  const auto bytes = [](std::int64_t heads, std::int64_t tiles, std::int64_t late, std::int64_t queries_per_keys) {
    const std::int64_t rows = heads * tiles * 128 * 4, sums = heads * (tiles + late) * queries_per_keys * 8192 * 4;
    const std::int64_t counts = (heads * 2 * tiles * queries_per_keys + 1) * 4;
    return static_cast<std::size_t>(2 * rows + sums + (counts + 255) / 256 * 256);
  };
  EXPECT_EQ(hopper_attention_back_bytes(packed(4, 4096, 32, 8, 64)), bytes(4 * 32, 32, 16, 1));
  EXPECT_EQ(hopper_attention_back_bytes(packed(4, 4096, 32, 8, 128)), bytes(4 * 32, 32, 16, 2));
  EXPECT_EQ(hopper_attention_back_bytes(packed(2, 300, 6, 3, 64)),
            bytes(2 * 6, 3, 2, 1) + std::size_t{2} * 3 * 2 * 3 * 2 * 128 * 64 * 4);
  EXPECT_EQ(hopper_attention_back_bytes(packed(1, 7, 1, 1, 64)), bytes(1, 1, 1, 1));
  EXPECT_GE(CudaWorkspaceRules().workspace(packed(1, 131072, 32, 8, 64)),
            hopper_attention_back_bytes(packed(1, 131072, 32, 8, 64)));
  EXPECT_LT(CudaWorkspaceRules().workspace(packed(4096, 8, 32, 8, 128)), std::size_t{8} << 20);
}

TEST(CudaAttentionWorkspace, CudnnIsUsedForWhatItSupports) {
  const auto supported = [](AttentionBackArgs args, auto change, bool deterministic = true) {
    change(args);
    return cudnn_supports(args, deterministic);
  };
  const AttentionBackArgs good = packed(2, 256, 4, 2, 64);
  EXPECT_TRUE(supported(good, [](AttentionBackArgs&) {}));
  EXPECT_TRUE(supported(good, [](AttentionBackArgs& args) { args.shape.window = 10; }));
  EXPECT_TRUE(cudnn_supports(packed(1, 16384, 32, 8, 128), true));   // 2 GiB of scores for a group
  EXPECT_FALSE(cudnn_supports(packed(1, 32768, 32, 8, 128), true));  // 8 GiB
  EXPECT_TRUE(cudnn_supports(packed(1, 32768, 32, 8, 128), false));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) { args.shape.dropout = 0.1f; }));
  EXPECT_FALSE(
      supported(good, [](AttentionBackArgs& args) { args.dk.data = static_cast<std::byte*>(args.dk.data) + 8; }));
  EXPECT_FALSE(supported(good, [](AttentionBackArgs& args) { args.dq.stride[0] += 4; }));
  EXPECT_FALSE(supported(packed(2, 256, 4, 2, 64, DType::f32), [](AttentionBackArgs&) {}));
  EXPECT_FALSE(supported(packed(2, 256, 4, 2, 60), [](AttentionBackArgs&) {}));
  EXPECT_FALSE(supported(packed(8, 32, 4, 2, 64), [](AttentionBackArgs&) {}));
  // More queries than keys: under a causal mask some would see none.
  const auto fewer_keys = [](AttentionBackArgs& args) { args.k = args.k.rows(0, 256); };
  EXPECT_FALSE(supported(good, fewer_keys));
  EXPECT_TRUE(supported(good, [&](AttentionBackArgs& args) {
    fewer_keys(args);
    args.shape.mask = Mask::full;
  }));
  // Documents are supported in forward, and in backward where results need not repeat.
  const auto documents = [](AttentionBackArgs& args) {
    args.shape.q_offsets = args.shape.k_offsets = at(1 << 23, shape(4), DType::i32);
  };
  EXPECT_FALSE(supported(good, documents, true));
  EXPECT_TRUE(supported(good, documents, false));
}

TEST(CudaAttentionWorkspace, CallsThatCudnnRefusesAreReportedOnceWithTheCause) {
  const auto forward_of = [](const AttentionBackArgs& args) {
    return AttentionArgs{args.q, args.k, args.v, args.out, args.lse, args.shape};
  };
  const auto reported = [&](const AttentionBackArgs& args, bool deterministic = true) {
    return attention_without_cudnn({.gemms = {}, .attentions = {forward_of(args)}, .attention_backs = {args, args}},
                                   deterministic);
  };
  EXPECT_EQ(reported(packed(2, 256, 4, 2, 64)), "");
  AttentionBackArgs dropping = packed(2, 256, 4, 2, 64);
  dropping.shape.dropout = 0.1f;
  const std::string both =
      " of 2 x 256 queries, 256 keys, N=4 G=2 D=64 bf16: its dropout would draw other numbers "
      "(model.attention_dropout=0 has none)\n";
  EXPECT_EQ(reported(dropping), "attention" + both + "attention_back" + both);
  EXPECT_NE(reported(packed(8, 32, 4, 2, 64)).find("sequences are shorter than 64 tokens\n"), std::string::npos);
  EXPECT_NE(reported(packed(2, 256, 4, 2, 60)).find("it takes heads of 8, 16, ... 256 channels\n"), std::string::npos);
  const AttentionBackArgs lengthy = packed(1, 32768, 32, 8, 128);
  EXPECT_EQ(reported(lengthy).find("attention_back of 1 x 32768 queries, "), 0u) << reported(lengthy);
  EXPECT_NE(reported(lengthy).find("more than 4 GiB"), std::string::npos);
  EXPECT_EQ(reported(lengthy, false), "");
  AttentionBackArgs documents = packed(1, 256, 4, 2, 64);
  documents.shape.q_offsets = documents.shape.k_offsets = at(1 << 23, shape(4), DType::i32);
  EXPECT_EQ(reported(documents).find("attention_back of 1 x 256 queries, "), 0u) << reported(documents);
  EXPECT_NE(reported(documents).find(" in documents: its backward of packed documents does not repeat"),
            std::string::npos);
  EXPECT_EQ(reported(documents, false), "");
}

}  // namespace
}  // namespace tera::cuda
