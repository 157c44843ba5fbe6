// Multi-head latent attention (MLA) in every configuration, and its forward by the definition.

#include "tera/nn/mixers/mla.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>

#include "tests/nn/block_checks.h"
#include "tests/nn/tiny_shape.h"

namespace tera::test {
namespace {

// No two sizes are equal, and values are narrower than keys.
ModelShape tiny_mla() {
  ModelShape model = tiny_shape();
  model.mla = MlaShape{.q_lora = 14, .kv_lora = 10, .nope = 5, .rotary = 4, .values = 7};
  model.kv_heads = model.heads;
  model.head_dim = 9;
  model.rope = {.base = 100, .rotary_dim = 4, .interleaved = true, .scaling = {}};
  return model;
}

struct Case {
  const char* name;
  void (*change)(ModelShape& model);
  std::vector<std::int32_t> offsets = {};
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

SublayerSpec sublayer_of(const ModelShape& model) { return make_spec(model, dropout_seed).layers[0].sublayers[0]; }
MlaSpec spec_of(const ModelShape& model) { return *sublayer_of(model).branches[0].branch.as<MlaSpec>(); }

BlockSetup setup_of(const ModelShape& model, std::vector<std::int32_t> offsets = {}) {
  return {.make = make_sublayer(sublayer_of(model)), .offsets = std::move(offsets)};
}

BlockSetup setup_of(const Case& c) {
  ModelShape model = tiny_mla();
  c.change(model);
  return setup_of(model, c.offsets);
}

const std::vector<Case> cases = {
    {"latents", [](ModelShape&) {}},
    {"no_q_latent", [](ModelShape& m) { m.mla->q_lora = 0; }},
    {"values_as_wide_as_keys", [](ModelShape& m) { m.mla->values = 9; }},
    {"halves", [](ModelShape& m) { m.rope.interleaved = false; }},
    {"window",
     [](ModelShape& m) {
       m.window = {3, 3};
     }},
    {"layer_norm", [](ModelShape& m) { m.norm = NormKind::layer_norm; }},
    {"biases", [](ModelShape& m) { m.qkv_bias = m.out_bias = true; }},
    {"biases_no_q_latent",
     [](ModelShape& m) {
       m.mla->q_lora = 0;
       m.qkv_bias = m.out_bias = true;
     }},
    {"both_dropouts",
     [](ModelShape& m) {
       m.hidden_dropout = 0.2f;
       m.attention_dropout = 0.2f;
     }},
    {"recomputed_norm", [](ModelShape& m) { m.recompute.layernorm = true; }},
    {"recomputed_norm_no_q_latent",
     [](ModelShape& m) {
       m.mla->q_lora = 0;
       m.recompute.layernorm = true;
     }},
    {"recomputed_up", [](ModelShape& m) { m.recompute.mla_up_proj = true; }},
    {"recomputed_up_and_norm_no_q_latent",
     [](ModelShape& m) {
       m.mla->q_lora = 0;
       m.recompute.mla_up_proj = m.recompute.layernorm = true;
     }},
    {"documents", [](ModelShape&) {}, {0, 4, 5, 14, 18}},
};

class MlaBlock : public testing::TestWithParam<Case> {};

TEST_P(MlaBlock, HoldsWhatEveryBlockMust) { check_block(setup_of(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Cases, MlaBlock, testing::ValuesIn(cases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(MlaBlocks, SelectiveRecomputeChangesNoBit) {
  for (const std::int64_t q_lora : {std::int64_t{0}, std::int64_t{14}}) {
    ModelShape model = tiny_mla();
    model.mla->q_lora = q_lora;
    const BlockSetup kept = setup_of(model);
    for (const auto& [norm, up] : {std::pair{true, false}, {false, true}, {true, true}}) {
      model.recompute.layernorm = norm;
      model.recompute.mla_up_proj = up;
      expect_same_results(kept, setup_of(model));
    }
  }
}

TEST(MlaBlocks, DocumentsOfEqualLengthAreSequences) {
  expect_same_results(setup_of(tiny_mla()), setup_of(tiny_mla(), {0, 9, 18}));
}

TEST(MlaBlocks, FrozenProjectionsStillPassGradientsOn) {
  BlockSetup frozen = setup_of(tiny_mla());
  frozen.freeze = {"*kv_b_proj*", "*q_b_proj*", "*_a_proj*"};
  BlockHarness all(setup_of(tiny_mla())), some(frozen);
  for (std::size_t i = 0; i < all.params().by_name().size(); ++i)
    some.set_value(*some.params().by_name()[i], all.value(*all.params().by_name()[i]));
  all.execute(one_stage(2));
  some.execute(one_stage(2));
  expect_same_bits(some.dx(0), all.dx(0), "dx");
  const char* norm = "model.layers.0.self_attn.kv_a_layernorm.weight";
  expect_same_bits(some.gradient(some.params().find(norm)), all.gradient(all.params().find(norm)), "the latent's norm");
}

// The published scale of scores: YaRN's growth, twice.
TEST(MlaBlocks, ScoresGrowWithTheContext) {
  ModelShape model = tiny_mla();
  EXPECT_FLOAT_EQ(spec_of(model).scale, 1.0f / 3);
  model.rope.scaling = {.type = RopeScalingKind::yarn,
                        .factor = 40,
                        .original_max_position_embeddings = 20,
                        .mscale = 1,
                        .mscale_all_dim = 1};
  const double growth = 0.1 * std::log(40.0) + 1;
  EXPECT_FLOAT_EQ(spec_of(model).scale, static_cast<float>(growth * growth / 3));
  EXPECT_DOUBLE_EQ(rope_magnitude(spec_of(model).rope), 1);
  model.rope.scaling.mscale_all_dim = 0;
  EXPECT_FLOAT_EQ(spec_of(model).scale, 1.0f / 3);
  EXPECT_DOUBLE_EQ(rope_magnitude(spec_of(model).rope), growth);
}

using Row = std::vector<double>;

// The definition, row by row and head by head, in fp64.
class Definition {
 public:
  Definition(BlockHarness& block, const MlaSpec& spec) : block_(block), spec_(spec) {
    const std::vector<float> x = block.x(0);
    for (std::size_t i = 0; i < x.size(); i += hidden) x_.emplace_back(x.begin() + at(i), x.begin() + at(i + hidden));
    for (const Row& row : x_) add_row(row);
  }

  std::size_t rows() const { return x_.size(); }

  // Each is one sequence of `length` rows.
  Row y(std::size_t row, std::size_t length) const {
    const std::size_t first = row / length * length;
    Row attended;
    for (std::int64_t head = 0; head < spec_.heads; ++head) {
      Row weights;
      for (std::size_t key = first; key <= row; ++key) {
        const auto& q = q_[row][static_cast<std::size_t>(head)];
        const auto& k = k_[key][static_cast<std::size_t>(head)];
        weights.push_back(std::exp(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) * spec_.scale));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      Row out(static_cast<std::size_t>(spec_.values));
      for (std::size_t key = first; key <= row; ++key)
        for (std::size_t i = 0; i < out.size(); ++i)
          out[i] += weights[key - first] / sum * v_[key][static_cast<std::size_t>(head)][i];
      attended.insert(attended.end(), out.begin(), out.end());
    }
    Row out = times("self_attn.o_proj", attended);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += x_[row][i];
    return out;
  }

 private:
  static constexpr std::size_t hidden = 24;
  static std::ptrdiff_t at(std::size_t i) { return static_cast<std::ptrdiff_t>(i); }

  Row read(const std::string& name) const {
    const std::vector<float> values = block_.value(block_.params().find("model.layers.0." + name + ".weight"));
    return {values.begin(), values.end()};
  }
  Row times(const std::string& name, const Row& x) const {
    const Row weight = read(name);
    Row out(weight.size() / x.size());
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = std::inner_product(x.begin(), x.end(), weight.begin() + at(i * x.size()), 0.0);
    return out;
  }
  Row normed(const std::string& name, Row x, double eps) const {
    const Row weight = read(name);
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] *= weight[i] / std::sqrt(squares / static_cast<double>(x.size()) + eps);
    return x;
  }
  static Row part(const Row& x, std::int64_t begin, std::int64_t count) {
    return {x.begin() + begin, x.begin() + begin + count};
  }
  // RoPE rotates pairs of neighbours; a row's position is its number in the sequence.
  Row rotated(Row x, double position) const {
    for (std::size_t pair = 0; pair < x.size() / 2; ++pair) {
      const double angle =
          position * std::pow(100.0, -2.0 * static_cast<double>(pair) / static_cast<double>(spec_.rotary));
      const double a = x[2 * pair], b = x[2 * pair + 1];
      x[2 * pair] = a * std::cos(angle) - b * std::sin(angle);
      x[2 * pair + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
    return x;
  }

  void add_row(const Row& x) {
    const auto position = static_cast<double>(q_.size() % 9);
    const Row in = normed("input_layernorm", x, 1e-5), down = times("self_attn.latent_proj", in);
    const Row q_latent = normed("self_attn.q_a_layernorm", part(down, 0, spec_.q_lora), 1e-6);
    const Row kv_latent = normed("self_attn.kv_a_layernorm", part(down, spec_.q_lora, spec_.kv_lora), 1e-6);
    const Row shared = rotated(part(down, spec_.q_lora + spec_.kv_lora, spec_.rotary), position);
    const Row q = times("self_attn.q_b_proj", q_latent), kv = times("self_attn.kv_b_proj", kv_latent);
    const std::int64_t nope = spec_.nope, values = spec_.values;
    std::vector<Row> queries, keys, all_values;
    for (std::int64_t head = 0; head < spec_.heads; ++head) {
      Row query = part(q, head * spec_.head(), nope), key = part(kv, head * (nope + values), nope);
      const Row rotary = rotated(part(q, head * spec_.head() + nope, spec_.rotary), position);
      query.insert(query.end(), rotary.begin(), rotary.end());
      key.insert(key.end(), shared.begin(), shared.end());
      queries.push_back(query);
      keys.push_back(key);
      all_values.push_back(part(kv, head * (nope + values) + nope, values));
    }
    q_.push_back(queries);
    k_.push_back(keys);
    v_.push_back(all_values);
  }

  BlockHarness& block_;
  const MlaSpec& spec_;
  std::vector<Row> x_;
  std::vector<std::vector<Row>> q_, k_, v_;  // row, head, channel
};

TEST(MlaBlocks, IsWhatItsDefinitionSays) {
  const MlaSpec spec = spec_of(tiny_mla());
  BlockHarness block(setup_of(tiny_mla()));
  block.reset();
  block.forward_only();
  const Definition definition(block, spec);
  const std::vector<float>& y = block.y(0);
  for (std::size_t row = 0; row < definition.rows(); ++row) {
    const Row want = definition.y(row, 9);
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(y[row * want.size() + i], want[i], 2e-5) << row << " " << i;
  }
}

}  // namespace
}  // namespace tera::test
