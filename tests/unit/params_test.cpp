#include <gtest/gtest.h>

#include <cmath>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"
#include "tera/base/rng.h"
#include "tera/nn/params.h"
#include "tera/ops/copy.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

ParamSpec matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
  return {.name = name,
          .shape = shape(rows, columns),
          .parts = {{.name = name, .global = shape(rows, columns)}},
          .init = {.kind = Init::Kind::normal, .std = 0.5f}};
}

ParamSpec bias(const std::string& name, std::int64_t rows) {
  return {
      .name = name, .shape = shape(rows), .parts = {{.name = name, .global = shape(rows)}}, .init = {}, .decay = false};
}

// q, k and v in one.
ParamSpec fused() {
  ParamSpec spec = matrix("attn.qkv.weight", 7, 5);
  spec.parts = {{.name = "attn.q.weight", .global = shape(3, 5), .local_row = 0},
                {.name = "attn.k.weight", .global = shape(2, 5), .local_row = 3},
                {.name = "attn.v.weight", .global = shape(2, 5), .local_row = 5}};
  return spec;
}

// A store with memory under it.
class Bound {
 public:
  explicit Bound(ParamStore& store, bool training = true) : ops_(1, cpu::best_isa()) {
    store.lay_out();
    Arena weights = Arena::measuring(), masters = Arena::measuring(), grads = Arena::measuring(),
          constants = Arena::measuring();
    const auto bind = [&] {
      store.bind(training ? ParamStore::Memory{weights, constants, &masters, &grads}
                          : ParamStore::Memory{weights, constants});
    };
    bind();
    weight_bytes = weights.peak();
    master_bytes = masters.peak();
    grad_bytes = grads.peak();
    const auto real = [&](Arena& arena) { arena = Arena(device_.allocate(arena.peak()), "real"); };
    for (Arena* arena : {&weights, &masters, &grads, &constants}) real(*arena);
    bind();
  }
  Ops& ops() { return ops_; }

  std::size_t weight_bytes = 0, master_bytes = 0, grad_bytes = 0;

 private:
  cpu::CpuDevice device_;
  cpu::CpuOps ops_;
};

TEST(Params, AreLaidOutByGroupAndAligned) {
  ParamStore store(DType::f32, {"frozen*"});
  Param& frozen = store.add(matrix("frozen", 2, 3));
  Param& small = store.add(bias("b", 3));
  Param& first = store.add(matrix("z", 10, 20));
  Param& second = store.add(matrix("a", 1, 1));
  Bound bound(store);
  // Decayed in order of adding, then not decayed, then frozen; each on a multiple of 128.
  EXPECT_EQ(first.offset, 0);
  EXPECT_EQ(second.offset, 256);
  EXPECT_EQ(small.offset, 384);
  EXPECT_EQ(frozen.offset, 512);
  EXPECT_EQ(store.trained_elements(), 512);
  EXPECT_EQ(store.count_elements(), 6 + 3 + 200 + 1);
  EXPECT_EQ(bound.weight_bytes, 640 * sizeof(float));
  EXPECT_EQ(bound.grad_bytes, 512 * sizeof(float));
  EXPECT_EQ(bound.master_bytes, 0u);  // in fp32 the weights are the masters

  ASSERT_EQ(store.groups().size(), 2u);
  const auto& [decayed, plain] = std::pair{store.groups()[0], store.groups()[1]};
  EXPECT_TRUE(decayed.decay);
  EXPECT_EQ(decayed.begin, 0);
  EXPECT_EQ(decayed.end, 384);
  EXPECT_FALSE(plain.decay);
  EXPECT_EQ(plain.begin, 384);
  EXPECT_EQ(plain.end, 512);
  EXPECT_EQ(decayed.master.data, first.value.data);
  EXPECT_EQ(plain.grad.data, small.grad.data);
  EXPECT_FALSE(decayed.copy);
  EXPECT_FALSE(frozen.grad);
  EXPECT_FALSE(frozen.master);
  EXPECT_TRUE(frozen.value);

  std::vector<std::string> names;
  for (const Param* param : store.by_name()) names.push_back(param->spec.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "frozen", "z"}));
}

TEST(Params, HaveMastersWhenComputeIsRounded) {
  ParamStore store(DType::bf16);
  Param& weight = store.add(matrix("w", 8, 16));
  Bound bound(store);
  EXPECT_EQ(bound.weight_bytes, 128 * 2u);
  EXPECT_EQ(bound.master_bytes, 128 * 4u);
  EXPECT_EQ(weight.value.dtype, DType::bf16);
  EXPECT_EQ(weight.master.dtype, DType::f32);
  EXPECT_EQ(store.groups()[0].copy.data, weight.value.data);
  store.initialize(bound.ops(), 3);
  const Part& part = weight.spec.parts[0];
  const auto rounded = read_part(bound.ops(), weight.value, part), exact = read_part(bound.ops(), weight.master, part);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(exact[i], 0.5f * normals_at(rng_stream(3, "w"), i / 4)[i % 4]);  // the master is not rounded
    EXPECT_EQ(rounded[i], to_float(to_bf16(exact[i])));
  }
}

TEST(Params, InferenceTakesWeightsOnly) {
  ParamStore store(DType::bf16);
  Param& weight = store.add(matrix("w", 8, 16));
  Bound bound(store, /*training=*/false);
  EXPECT_EQ(bound.grad_bytes + bound.master_bytes, 0u);
  EXPECT_TRUE(weight.value);
  EXPECT_FALSE(weight.grad);
  EXPECT_FALSE(weight.master);
  EXPECT_TRUE(store.groups().empty());
}

// Router state is f32 beside 16-bit weights, zero at the start, and not updated by gradients.
TEST(Params, RouterStateIsNotTrained) {
  for (const bool training : {true, false}) {
    ParamStore store(DType::bf16, {"*.held"});
    Param& weight = store.add(matrix("a", 4, 8));
    ParamSpec spec = bias("a.moved", 5);
    spec.counts = ParamSpec::Counts::bias;
    spec.router_layer = 2;
    const Param& moved = store.add(spec);
    spec.name = spec.parts[0].name = "a.held";
    const Param& frozen = store.add(spec);
    Bound bound(store, training);
    EXPECT_EQ(moved.value.dtype, DType::f32);
    EXPECT_EQ(moved.value.shape, shape(5));
    EXPECT_FALSE(moved.spec.trainable || moved.grad || moved.master || moved.bucket >= 0);
    EXPECT_TRUE(frozen.spec.frozen && !moved.spec.frozen && weight.spec.trainable);
    EXPECT_EQ(store.count_elements(), 32);
    EXPECT_EQ(store.trained_elements(), 128);
    store.initialize(bound.ops(), 1);
    EXPECT_EQ(download(bound.ops(), moved.value), std::vector<float>(5, 0.0f));
  }
}

using Patterns = std::vector<std::string>;

TEST(Params, FreezePatternsMatchParametersAndTheirParts) {
  for (const auto& [patterns, frozen] : std::vector<std::pair<Patterns, bool>>{
           {{"attn.qkv.weight"}, true},
           {{"*"}, true},
           {{"attn.?.weight"}, true},
           {{"attn.q.*", "attn.k.*", "attn.v.*"}, true},  // together all parts
           {{"attn.q.*", "*qkv*"}, true},                 // a part, and the whole by another pattern
           {{"*.bias"}, false}}) {
    ParamStore store(DType::f32, patterns);
    const Param& qkv = store.add(fused());
    store.add(bias("attn.out.bias", 3));
    store.lay_out();
    EXPECT_EQ(qkv.spec.trainable, !frozen) << patterns[0];
  }
}

TEST(Params, FreezePatternsThatMissAreRefused) {
  const auto message = [](const Patterns& patterns) {
    ParamStore store(DType::f32, patterns);
    store.add(fused());
    store.add(bias("attn.out.bias", 3));
    return message_of<UserError>([&] { store.lay_out(); });
  };
  for (const char* pattern : {"attn", "nothing", "*.scale", "attn.?"}) {
    const std::string said = message({"*.bias", pattern});
    EXPECT_TRUE(contains(said, "model.freeze: '" + std::string(pattern) + "' matches no parameter") &&
                contains(said, "attn.out.bias"))
        << said;
  }
  EXPECT_EQ(message({"attn.k.*"}),
            "model.freeze: 'attn.k.*' matches attn.k.weight but not attn.q.weight, attn.v.weight, and they are one "
            "parameter; 'attn.qkv.weight' freezes all of it");
  EXPECT_TRUE(contains(message({"attn.q.*", "attn.v.*"}), "attn.q.weight, attn.v.weight but not attn.k.weight"));
}

TEST(Params, PartsAreRowsOfTheWhole) {
  ParamStore store(DType::f32);
  Param& qkv = store.add(fused());
  Bound bound(store);
  std::vector<float> k(10);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i) + 1;
  write_part(bound.ops(), qkv, qkv.spec.parts[1], k);
  for (int row = 0; row < 7; ++row)
    for (int column = 0; column < 5; ++column) {
      const float want = row == 3 || row == 4 ? static_cast<float>((row - 3) * 5 + column) + 1 : 0;
      EXPECT_EQ(qkv.value.as<float>()[row * 5 + column], want);
    }
  EXPECT_EQ(read_part(bound.ops(), qkv.value, qkv.spec.parts[1]), k);
  k.pop_back();
  EXPECT_TRUE(
      contains(message_of<Error>([&] { write_part(bound.ops(), qkv, qkv.spec.parts[1], k); }), "attn.k.weight"));
}

TEST(Params, GapsBetweenParametersStayZero) {
  ParamStore store(DType::f32);
  Param& weight = store.add(matrix("w", 10, 10));
  store.add(matrix("x", 3, 3));
  Bound bound(store);
  store.initialize(bound.ops(), 5);
  const auto* flat = weight.value.as<float>();
  EXPECT_NE(flat[99], 0);
  for (int i = 100; i < 128; ++i) EXPECT_EQ(flat[i], 0);
  EXPECT_NE(flat[128], 0);
}

// Gradient memory may hold any values when a step begins: the first use overwrites some gradients, the rest is cleared,
// and no old value stays.
TEST(Params, GradientsBeginEmpty) {
  ParamStore store(DType::f32);
  const auto add_written = [&](const std::string& name) -> Param& {
    ParamSpec spec = matrix(name, 10, 10);
    spec.first_use_overwrites = true;
    return store.add(spec);
  };
  Param &made = add_written("made"), &added = store.add(matrix("added", 3, 3)), &never = add_written("never");
  Param& small = store.add(bias("b", 3));
  Bound bound(store);
  store.initialize(bound.ops(), 5);
  EXPECT_TRUE(made.accumulate_next()) << "who clears gradients by itself need not know";

  Bucket& bucket = store.buckets()[0];
  const auto* flat = bucket.grad.as<float>();
  bound.ops()(FillArgs{.out = bucket.grad, .value = std::nanf("")});
  store.empty_grads(bound.ops(), bucket);
  for (std::int64_t i = 0; i < bucket.elements(); ++i) {
    const auto is_in = [&](const Param& param) { return i >= param.offset && i < param.offset + 100; };
    EXPECT_EQ(std::isnan(flat[i]), is_in(made) || is_in(never)) << i;
  }
  EXPECT_TRUE(added.accumulate_next() && small.accumulate_next());
  EXPECT_FALSE(made.accumulate_next());
  EXPECT_TRUE(made.accumulate_next()) << "the first was written";
  bound.ops()(FillArgs{.out = made.grad, .value = 2});
  store.complete_grads(bound.ops(), bucket);
  for (std::int64_t i = 0; i < bucket.elements(); ++i) EXPECT_EQ(flat[i], i < 100 ? 2 : 0) << i;
  EXPECT_TRUE(never.accumulate_next());
}

// Long enough to be drawn by several threads, whose boundaries must not show.
TEST(Params, LargeDrawsHaveNoSeams) {
  ParamStore store(DType::f32);
  Param& weight = store.add(matrix("w", 1001, 333));
  Bound bound(store);
  store.initialize(bound.ops(), 9);
  const auto* values = weight.value.as<float>();
  for (std::size_t i = 0; i < 1001 * 333; ++i)
    ASSERT_EQ(values[i], 0.5f * normals_at(rng_stream(9, "w"), i / 4)[i % 4]) << i;
}

TEST(Params, MistakesAreNamed) {
  ParamStore twice(DType::f32);
  twice.add(bias("b", 3));
  twice.add(bias("b", 4));
  EXPECT_TRUE(contains(message_of<Error>([&] { twice.lay_out(); }), "two parameters are named 'b'"));

  ParamStore late(DType::f32);
  late.add(bias("b", 3));
  late.lay_out();
  EXPECT_TRUE(contains(message_of<Error>([&] { late.add(bias("c", 3)); }), "'c' was added after"));
  EXPECT_TRUE(contains(message_of<Error>([&] { late.find("c"); }), "no parameter 'c'"));
  EXPECT_EQ(late.find("b").spec.shape, shape(3));

  ParamStore early(DType::f32);
  early.add(bias("b", 3));
  Arena arena = Arena::measuring();
  EXPECT_TRUE(contains(message_of<Error>([&] { early.bind({arena, arena}); }), "before they are laid out"));
}

}  // namespace
}  // namespace tera::test
