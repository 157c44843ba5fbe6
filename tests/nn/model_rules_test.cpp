// Rules of complete models: packed documents, frozen parameters, padding of the vocabulary, initial weights.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"
#include "tests/support/close.h"
#include "tests/support/model.h"

#include "tera/ops/copy.h"

namespace tera::test {
namespace {

constexpr std::uint64_t init_seed = 11;  // the seed in tests/support/model.cpp

std::vector<float> part_value(Model& model, const std::string& name) {
  for (const Param* param : model.params().by_name())
    for (const auto& part : param->spec.parts)
      if (part.name == name) return read_part(model.ops(), param->value, part);
  ADD_FAILURE() << "no part " << name;
  return {};
}

// Three documents in one row of tokens, against each alone. Gradients are sums over tokens in another order, so equal
// but for rounding.
TEST(ModelRules, PackedDocumentsAreSeparateSequences) {
  const std::vector<std::int32_t> offsets{0, 3, 4, 12};
  for (const ModelShape& shape : {tiny_shape(), tiny_gpt_shape()}) {
    Batch packed = random_batch(1, 12, 29, 70);
    packed.offsets = offsets;
    Model together(shape, {.seq = 12, .documents = 3});
    const std::vector<float> logits = together.logits(packed);
    together.train({packed});
    const std::vector<float> gradients = together.all_gradients();

    const auto counted = [](const std::vector<std::int32_t>& targets) {
      return static_cast<float>(std::count_if(targets.begin(), targets.end(), [](auto target) { return target >= 0; }));
    };
    std::vector<float> sum(gradients.size());
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      const auto cut = [&](const std::vector<std::int32_t>& from) {
        return std::vector(from.begin() + offsets[i], from.begin() + offsets[i + 1]);
      };
      const Batch alone{.tokens = cut(packed.tokens), .targets = cut(packed.targets), .batch = 1};
      Model model(shape, {.seq = offsets[i + 1] - offsets[i]});
      const auto begin = logits.begin() + offsets[i] * 32, end = logits.begin() + offsets[i + 1] * 32;
      EXPECT_LT(relative_difference(model.logits(alone), {begin, end}), 1e-6) << "document " << i;
      if (counted(alone.targets) == 0) continue;
      model.train({alone});
      const std::vector<float> part = model.all_gradients();
      const float fraction = counted(alone.targets) / counted(packed.targets);
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += part[j] * fraction;
    }
    EXPECT_LT(relative_difference(gradients, sum), 1e-5);
  }
}

TEST(ModelRules, FrozenParametersHaveNoGradientMemory) {
  ModelShape frozen = tiny_shape();
  frozen.freeze = {"model.embed_tokens.*", "*layers.0.*", "*norm*"};
  Model all(tiny_shape(), {.seq = 10}), some(frozen, {.seq = 10});
  const Batch batch = random_batch(1, 10, 29, 71);
  EXPECT_EQ(all.train({batch}), some.train({batch}));
  EXPECT_TRUE(some.peaks_as_planned());
  std::int64_t trained = 0;
  for (const Param* param : some.params().by_name()) {
    const std::string& name = param->spec.name;
    const bool is_frozen = name.find("norm") != std::string::npos || name.find("layers.0.") != std::string::npos ||
                           name.find("embed") != std::string::npos;
    EXPECT_EQ(static_cast<bool>(param->grad), !is_frozen) << name;
    EXPECT_EQ(static_cast<bool>(param->master), !is_frozen) << name;
    if (is_frozen) continue;
    trained += (count(param->spec.shape) + 127) / 128 * 128;
    for (const auto& part : param->spec.parts)
      expect_same_bits(some.gradient(part.name), all.gradient(part.name), part.name.c_str());
  }
  EXPECT_EQ(some.params().trained_elements(), trained);
  EXPECT_EQ(static_cast<std::int64_t>(some.all_gradients().size()), trained);
}

TEST(ModelRules, WhollyFrozenModelStillHasALoss) {
  ModelShape frozen = tiny_shape();
  frozen.freeze = {"*"};
  Model all(tiny_shape(), {.seq = 10}), none(frozen, {.seq = 10});
  const Batch batch = random_batch(1, 10, 29, 71);
  EXPECT_EQ(all.train({batch}), none.train({batch}));
  EXPECT_EQ(none.params().trained_elements(), 0);
  EXPECT_TRUE(none.all_gradients().empty());
}

// Padding in the softmax with rows of zeros adds one to the sum of exp for each row.
TEST(ModelRules, PaddingInTheSoftmaxAddsItsRows) {
  ModelShape outside = tiny_shape(), inside = tiny_shape();
  outside.init_std = inside.init_std = 0.3f;  // logits that differ
  inside.pad_vocab_in_softmax = true;
  Model left_out(outside, {.seq = 10}), taken_in(inside, {.seq = 10});
  for (Param* param : taken_in.params().by_name())
    if (param->spec.name == "lm_head.weight") taken_in.ops()(FillArgs{.out = param->value.rows(29, 32), .value = 0});
  const Batch batch = random_batch(1, 10, 29, 72);
  const std::vector<float> logits = left_out.logits(batch);
  double without = 0, with = 0;
  int counted = 0;
  for (std::size_t row = 0; row < 10; ++row) {
    if (batch.targets[row] < 0) continue;
    double sum = 0;
    for (std::size_t column = 0; column < 29; ++column) sum += std::exp(static_cast<double>(logits[row * 32 + column]));
    for (std::size_t column = 29; column < 32; ++column)
      ASSERT_EQ(logits[row * 32 + column], 0);  // their rows are zero
    const double picked = logits[row * 32 + static_cast<std::size_t>(batch.targets[row])];
    without += std::log(sum) - picked;
    with += std::log(sum + 3) - picked;
    ++counted;
  }
  EXPECT_NEAR(left_out.train({batch}), without / counted, 1e-5);
  EXPECT_NEAR(taken_in.train({batch}), with / counted, 1e-5);
  EXPECT_GT(with - without, 0.01);

  // Outside the softmax, rows of padding get no gradient in either table; inside, the head's do.
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"}) {
    const auto padding_is_zero = [&](Model& model) {
      const Tensor grad = model.params().find(name).grad;
      std::vector<float> rows(3 * 24);
      model.ops().to_host(grad.rows(29, 32), std::as_writable_bytes(std::span(rows)));
      return std::all_of(rows.begin(), rows.end(), [](float value) { return value == 0; });
    };
    EXPECT_TRUE(padding_is_zero(left_out)) << name;
    EXPECT_EQ(padding_is_zero(taken_in), std::string(name) != "lm_head.weight") << name;
  }
}

// The documented draw (docs/numerics.md): element i of the tensor called `name` in files is std times draw i of the
// normal stream of (seed, name), whatever it is fused with.
TEST(InitialWeights, AreAFunctionOfSeedNameAndElement) {
  for (const ModelShape& shape : {tiny_shape(), tiny_gpt_shape()}) {
    Model model(shape, {.seq = 10});
    int parts = 0;
    for (const Param* param : model.params().by_name()) {
      for (const auto& part : param->spec.parts) {
        const std::vector<float> values = read_part(model.ops(), param->value, part);
        ++parts;
        const bool is_norm = part.name.find("norm") != std::string::npos || part.name.find("ln_") != std::string::npos;
        if (part.name.ends_with(".bias") || is_norm) {
          for (const float value : values) ASSERT_EQ(value, part.name.ends_with(".bias") ? 0 : 1) << part.name;
          continue;
        }
        // Projections into the residual stream start smaller by sqrt(2 L), two layers here.
        const bool is_output = part.name.find("o_proj") != std::string::npos ||
                               part.name.find("down_proj") != std::string::npos ||
                               part.name.find("c_proj") != std::string::npos;
        const float std = is_output ? shape.init_std / 2 : shape.init_std;
        const RngKey key = rng_stream(init_seed, part.name);
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(values[i], std * normals_at(key, i / 4)[i % 4]) << part.name << " " << i;
      }
    }
    EXPECT_EQ(parts, shape.family->name == "gpt" ? 2 + 2 * 12 + 2 : 2 + 2 * 9 + 1);
  }
}

TEST(InitialWeights, DoNotDependOnPadding) {
  ModelShape padded = tiny_shape(), drawn = tiny_shape(), plain = tiny_shape();
  padded.padded_vocab = 128;
  drawn.padded_vocab = 128;
  drawn.pad_vocab_in_softmax = true;
  plain.padded_vocab = 29;
  Model a(padded, {.seq = 10}), b(drawn, {.seq = 10}), c(plain, {.seq = 10});
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const std::vector<float> want = part_value(c, name);
    expect_same_bits(part_value(a, name), want, name);
    expect_same_bits(part_value(b, name), want, name);
  }
  const Batch batch = random_batch(1, 10, 29, 73);
  EXPECT_NEAR(a.train({batch}), c.train({batch}), 1e-6);
}

// Enough elements to see the spread: 4096 draws know it to 1.1 %.
TEST(InitialWeights, HaveTheSpreadThatWasAsked) {
  ModelShape shape = tiny_shape();
  shape.hidden = 64;
  shape.ffn = 96;
  shape.num_layers = 8;
  shape.window.assign(8, 0);
  shape.init_std = 0.05f;
  Model model(shape, {.seq = 4});
  const auto spread = [&](const std::string& name) {
    double squares = 0;
    const auto values = part_value(model, name);
    for (const float value : values) squares += static_cast<double>(value) * value;
    return std::sqrt(squares / static_cast<double>(values.size()));
  };
  EXPECT_NEAR(spread("model.layers.3.mlp.up_proj.weight"), 0.05, 0.05 * 0.05);
  EXPECT_NEAR(spread("model.layers.3.mlp.down_proj.weight"), 0.0125, 0.05 * 0.0125);  // over sqrt(2 * 8)
  EXPECT_NEAR(spread("model.layers.7.self_attn.o_proj.weight"), 0.0125, 0.08 * 0.0125);
}

}  // namespace
}  // namespace tera::test
