// What PlanOps counts. Every op's cases also test that it accepts what the CPU accepts and reserves enough.

#include <gtest/gtest.h>

#include "tera/backend/plan/plan_ops.h"
#include "tera/ops/attention.h"
#include "tera/ops/gemm.h"
#include "tera/tensor/arena.h"

namespace tera::test {
namespace {

struct FixedRules final : WorkspaceRules {
  const OpsTraits& traits() const override { return traits_; }
  using WorkspaceRules::workspace;
  std::size_t workspace(const GemmArgs& args) const override { return static_cast<std::size_t>(args.m()) * 100; }
  OpsTraits traits_;
};

AttentionArgs attention(Arena& arena, std::int64_t queries, std::int64_t keys, AttentionShape s) {
  s.scale = 1;
  return {.q = arena.take(shape(queries, 4, 8), DType::f32, "q"),
          .k = arena.take(shape(keys, 2, 8), DType::f32, "k"),
          .v = arena.take(shape(keys, 2, 8), DType::f32, "v"),
          .out = arena.take(shape(queries, 4, 8), DType::f32, "out"),
          .lse = arena.take(shape(4, queries), DType::f32, "lse"),
          .shape = s};
}

double attention_flops(std::int64_t queries, std::int64_t keys, AttentionShape s) {
  Arena arena = Arena::measuring();
  const FixedRules rules;
  PlanOps plan(rules);
  plan(attention(arena, queries, keys, s));
  return plan.flops();
}

TEST(PlanOps, CountsGemmsAndTheLargestWorkspace) {
  Arena arena = Arena::measuring();  // addresses only: reading one would crash
  const FixedRules rules;
  PlanOps plan(rules);
  for (std::int64_t m : {3, 7, 2})
    plan(GemmArgs{.a = arena.take(shape(m, 5), DType::f32, "a"),
                  .b = arena.take(shape(5, 4), DType::f32, "b"),
                  .out = arena.take(shape(m, 4), DType::f32, "out")});
  EXPECT_EQ(plan.workspace_peak(), 700u);
  EXPECT_EQ(plan.calls(), 3);
  EXPECT_EQ(plan.flops(), 2.0 * (3 + 7 + 2) * 5 * 4);
}

TEST(PlanOps, KeepsEachShapeOfGemmAndAttentionOnce) {
  Arena arena = Arena::measuring();
  const FixedRules rules;
  PlanOps plan(rules);
  const auto plan_gemm = [&](std::int64_t m, bool accumulate) {
    plan(GemmArgs{.a = arena.take(shape(m, 5), DType::f32, "a"),
                  .b = arena.take(shape(5, 4), DType::f32, "b"),
                  .out = arena.take(shape(m, 4), DType::f32, "out"),
                  .accumulate = accumulate});
  };
  plan_gemm(3, false);
  plan_gemm(3, false);
  plan_gemm(3, true);
  plan_gemm(7, false);
  plan(attention(arena, 8, 8, {}));
  plan(attention(arena, 8, 8, {}));
  plan(attention(arena, 8, 8, {.window = 4}));
  EXPECT_EQ(plan.planned_calls().gemms.size(), 3u);
  EXPECT_EQ(plan.planned_calls().attentions.size(), 2u);
  EXPECT_EQ(plan.planned_calls().attention_backs.size(), 0u);
}

// A fused GEMM and activation is one call of the plan: the backend says whether its GEMM is computed unfused.
TEST(PlanOps, KeepsGemmsWithTheirActivationsApart) {
  Arena arena = Arena::measuring();
  const FixedRules rules;
  PlanOps plan(rules);
  const auto call = [&](std::int64_t m, Activation kind) {
    const Tensor x = arena.take(shape(m, 8), DType::f32, "x"), scratch = arena.take(shape(m, 4), DType::f32, "room");
    plan(GemmActivationArgs{.gemm = {.a = arena.take(shape(m, 5), DType::f32, "a"),
                                     .b = arena.take(shape(8, 5), DType::f32, "b"),
                                     .out = x,
                                     .trans_b = true},
                            .activation = {.kind = kind, .x = x, .y = arena.take(shape(m, 4), DType::f32, "y")}});
    plan(GemmActivationBackArgs{.gemm = {.a = arena.take(shape(m, 5), DType::f32, "a"),
                                         .b = arena.take(shape(5, 4), DType::f32, "b"),
                                         .out = scratch},
                                .activation = {.kind = kind, .dy = scratch, .x = x, .dx = x}});
  };
  call(3, Activation::swiglu);
  call(3, Activation::swiglu);
  call(3, Activation::geglu);
  call(7, Activation::swiglu);
  EXPECT_TRUE(plan.planned_calls().gemms.empty());
  EXPECT_EQ(plan.planned_calls().gemm_activations.size(), 3u);
  EXPECT_EQ(plan.planned_calls().gemm_activation_backs.size(), 3u);
  EXPECT_EQ(plan.workspace_peak(), 700u);
  EXPECT_EQ(plan.flops(), 2.0 * (3 + 3 + 3 + 7) * 5 * (8 + 4));
}

TEST(PlanOps, CountsWhatAttentionSees) {
  constexpr double per_pair = 4 * 4 * 8;  // four flops, heads, channels
  EXPECT_EQ(attention_flops(64, 64, {.batch = 4, .mask = Mask::full}), per_pair * 4 * 16 * 16);
  EXPECT_EQ(attention_flops(64, 64, {.batch = 4}), per_pair * 4 * 16 * 16 / 2);
  EXPECT_EQ(attention_flops(8, 32, {}), per_pair * (32 * 32 - 24 * 24) / 2);             // the last 8 of 32
  EXPECT_EQ(attention_flops(32, 32, {.window = 8}), per_pair * (8 * 8 / 2.0 + 8 * 24));  // a band
  EXPECT_EQ(attention_flops(32, 32, {.window = 99}), per_pair * 32 * 32 / 2);
  EXPECT_EQ(attention_flops(8, 32, {.window = 4}), per_pair * 4 * 8);
}

TEST(PlanOps, CountsBackwardAsTwoForwards) {
  Arena arena = Arena::measuring();
  const FixedRules rules;
  PlanOps plan(rules);
  const AttentionArgs f = attention(arena, 32, 32, {});
  plan(AttentionBackArgs{.q = f.q,
                         .k = f.k,
                         .v = f.v,
                         .out = f.out,
                         .dout = f.out,
                         .lse = f.lse,
                         .dq = f.q,
                         .dk = f.k,
                         .dv = f.v,
                         .shape = f.shape});
  EXPECT_EQ(plan.flops(), 2 * attention_flops(32, 32, {}));
}

}  // namespace
}  // namespace tera::test
