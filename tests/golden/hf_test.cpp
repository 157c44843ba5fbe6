// Folders as transformers writes them and the Hugging Face hub publishes them, each for one mistake that readers make:
// the logits must be those of transformers, and where the mistake can be made on purpose, they must not be.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "tera/hf/hf_folder.h"
#include "tera/infer/generator.h"
#include "tera/ops/norm.h"
#include "tera/setup/resolve.h"
#include "tests/support/close.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

constexpr double limit = 1e-4;  // largest difference over largest value
constexpr double clear = 1e-2;  // what a mistake makes at least

fs::path golden(const std::string& name) { return fs::path(source_path("tests/golden/hf")) / name; }

// Weights in memory, to be spoilt.
class Spoilt final : public WeightSource {
 public:
  explicit Spoilt(const WeightSource& source) {
    for (const auto& [name, entry] : source.tensors()) {
      const WeightBox box = full_box(entry.shape);
      std::vector<std::byte> raw(static_cast<std::size_t>(box.elements()) * size_of(entry.dtype));
      source.read(name, box, raw);
      values_[name].resize(static_cast<std::size_t>(box.elements()));
      to_floats(entry.dtype, raw, values_[name]);
      tensors_[name] = {.dtype = DType::f32, .shape = entry.shape};
    }
  }
  const std::map<std::string, Entry>& tensors() const override { return tensors_; }
  std::string where() const override { return "memory"; }
  void read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const override {
    const Shape& shape = tensors_.at(name).shape;
    const std::int64_t columns = shape.rank == 2 ? shape[1] : 1;
    std::byte* to = out.data();
    for (std::int64_t row = box.row_begin; row < box.row_end; ++row)
      for (std::int64_t column = box.column_begin; column < box.column_end; ++column, to += sizeof(float))
        std::memcpy(to, &values_.at(name)[static_cast<std::size_t>(row * columns + column)], sizeof(float));
  }

  void swap(const std::string& one, const std::string& other) { values_.at(one).swap(values_.at(other)); }
  void transpose(const std::string& name) {  // a square matrix
    const auto n = static_cast<std::size_t>(tensors_.at(name).shape[0]);
    std::vector<float>& values = values_.at(name);
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t c = 0; c < r; ++c) std::swap(values[r * n + c], values[c * n + r]);
  }
  // Heads of `rows` rows, so that head i becomes head order[i].
  void reorder(const std::string& name, std::size_t rows, const std::vector<std::size_t>& order) {
    const std::vector<float> before = values_.at(name);
    const std::size_t head = rows * static_cast<std::size_t>(tensors_.at(name).shape[1]);
    for (std::size_t i = 0; i < order.size(); ++i)
      std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(order[i] * head), head,
                  values_.at(name).begin() + static_cast<std::ptrdiff_t>(i * head));
  }

 private:
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, Entry> tensors_;
};

// [B,S,V] of the tokens in the folder's expected.safetensors.
std::vector<float> logits_of(const ModelConfig& model, const WeightSource& source, const SafetensorsFile& expected) {
  RunConfig config;
  config.model = model;
  config.train.seq_length = model.max_position_embeddings;
  const tera::Setup setup = resolve(config, Purpose::inspect);
  check_tensors(source, setup.model);
  const StoredTensor tokens = expected.get("tokens");
  const std::int64_t batch = tokens.shape[0], length = tokens.shape[1];
  std::vector<std::int32_t> ids(static_cast<std::size_t>(batch * length));
  std::memcpy(ids.data(), tokens.bytes.data(), tokens.bytes.size());
  Backend backend = make_backend({.device = DeviceChoice::cpu, .threads = 1});
  Generator generator(setup, backend, {.max_prompt = length, .max_tokens = length, .every_row = true});
  load_weights(source, generator.params(), *backend.ops);
  std::vector<float> all;
  for (std::int64_t i = 0; i < batch; ++i) {
    const auto logits = generator.prompt_logits(
        std::span(ids).subspan(static_cast<std::size_t>(i * length), static_cast<std::size_t>(length)));
    for (std::int64_t row = 0; row < length; ++row) {
      const auto begin = logits.begin() + row * setup.model.padded_vocab;  // padding rows are no tokens
      all.insert(all.end(), begin, begin + setup.model.vocab);
    }
  }
  return all;
}

struct Trap {
  const char* name;
  std::function<void(ModelConfig&)> wrong_config = {};
  std::function<void(Spoilt&)> wrong_weights = {};
};
void PrintTo(const Trap& trap, std::ostream* out) { *out << trap.name; }

const std::string layer0 = "model.layers.0.", gpt_layer0 = "transformer.h.0.",
                  mixtral_layer0 = layer0 + "block_sparse_moe.";

std::vector<Trap> traps() {
  const auto no_scaling = [](ModelConfig& m) { m.rope_scaling = {}; };
  return {
      {"rope_half_split", [](ModelConfig& m) { m.rotary_interleaved = true; }},
      {"rope_linear", no_scaling},
      {"rope_llama3", no_scaling},
      {"rope_yarn", [](ModelConfig& m) { m.rope_scaling.attention_factor = 1; }},  // the factor on cos and sin
      {"rope_yarn_mscale", [](ModelConfig& m) { m.rope_scaling.mscale = m.rope_scaling.mscale_all_dim = 0; }},
      // Six query heads, two for keys: 0 0 0 1 1 1, not 0 1 0 1 0 1.
      {"gqa_grouping",
       {},
       [](Spoilt& w) {
         w.reorder(layer0 + "self_attn.q_proj.weight", 4, {0, 3, 1, 4, 2, 5});
       }},
      {"gate_up_order", {}, [](Spoilt& w) { w.swap(layer0 + "mlp.gate_proj.weight", layer0 + "mlp.up_proj.weight"); }},
      {"tied_embeddings"},
      {"tied_head_alone"},
      {"sharded"},
      {"old_llama2"},
      {"bare_llama"},
      {"biases"},
      {"integer_floats", no_scaling},
      {"mistral_window", [](ModelConfig& m) { m.window_size = 6; }},
      {"qwen2_unused_window", [](ModelConfig& m) { m.window_size = 4; }},
      {"qwen2_window", [](ModelConfig& m) { m.max_window_layers = 0; }},
      {"qwen2_layer_types", [](ModelConfig& m) { m.layer_types.clear(); }},
      {"qk_norm_before_rope",
       {},
       [](Spoilt& w) { w.swap(layer0 + "self_attn.q_norm.weight", layer0 + "self_attn.k_norm.weight"); }},
      {"qwen3_biases"},
      {"latents", [](ModelConfig& m) { m.rotary_interleaved = false; }},
      {"latents_bias", [](ModelConfig& m) { m.moe.router_topk_scaling_factor = 1; }},
      {"latents_yarn", [](ModelConfig& m) { m.mla.mscale_all_dim = 0; }},  // the scale of scores
      {"gpt2_square", {}, [](Spoilt& w) { w.transpose(gpt_layer0 + "attn.c_proj.weight"); }},
      {"gpt2_published", [](ModelConfig& m) { m.activation = Activation::silu; }},
      {"gpt2_untied_erf"},
      // The weights of the chosen experts add up to 1, or they do not.
      {"mixtral_experts", [](ModelConfig& m) { m.moe.router_pre_softmax = true; },
       [](Spoilt& w) { w.swap(mixtral_layer0 + "experts.0.w1.weight", mixtral_layer0 + "experts.0.w3.weight"); }},
      {"mixtral_fused",
       {},
       [](Spoilt& w) { w.swap(mixtral_layer0 + "experts.1.w2.weight", mixtral_layer0 + "experts.2.w2.weight"); }},
      {"mixtral_window", [](ModelConfig& m) { m.window_size = 6; }},
      {"qwen3_moe_experts", [](ModelConfig& m) { m.moe.router_pre_softmax = true; }},
      {"qwen3_moe_fused", [](ModelConfig& m) { m.moe.router_pre_softmax = false; }},
  };
}

class HfFolderTrap : public testing::TestWithParam<Trap> {};

TEST_P(HfFolderTrap, GivesTheLogitsOfTransformers) {
  const Trap& trap = GetParam();
  const HfFolder folder(golden(trap.name));
  const SafetensorsFile expected(golden(trap.name) / "expected.safetensors");
  const std::vector<float> want = expected.read_floats("logits");
  EXPECT_LT(relative_difference(logits_of(folder.model(), folder, expected), want), limit);
  if (trap.wrong_config) {
    ModelConfig wrong = folder.model();
    trap.wrong_config(wrong);
    EXPECT_GT(relative_difference(logits_of(wrong, folder, expected), want), clear) << "the mistake would go unseen";
  }
  if (trap.wrong_weights) {
    Spoilt wrong(folder);
    trap.wrong_weights(wrong);
    EXPECT_GT(relative_difference(logits_of(folder.model(), wrong, expected), want), clear)
        << "the mistake would go unseen";
  }
}

INSTANTIATE_TEST_SUITE_P(Traps, HfFolderTrap, testing::ValuesIn(traps()),
                         [](const auto& test) { return std::string(test.param.name); });

// A head's size is what the file says, not H/N.
TEST(HfTraps, HeadSizeIsNotHiddenOverHeads) {
  const ModelConfig model = HfFolder(golden("qk_norm_before_rope")).model();
  EXPECT_EQ(model.kv_channels, 10);
  EXPECT_NE(model.kv_channels, model.hidden_size / model.num_attention_heads);
}

// A rotation keeps the length of a head, so that the order of norm and RoPE shows only where the weights of the two
// elements that rotate together differ. With equal weights the golden logits above would be right in either order.
TEST(HfTraps, QkNormWeightsTellItsOrderWithRope) {
  const HfFolder folder(golden("qk_norm_before_rope"));
  for (const char* name : {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}) {
    const DType dtype = folder.tensors().at(layer0 + name).dtype;
    std::vector<std::byte> stored(10 * size_of(dtype));
    std::vector<float> weight(10);
    folder.read(layer0 + name, full_box(shape(10)), stored);
    to_floats(dtype, stored, weight);
    float largest = 0;
    for (std::size_t i = 0; i < 5; ++i) largest = std::max(largest, std::abs(weight[i] - weight[i + 5]));
    EXPECT_GT(largest, 0.1F) << name;
  }
}

// The number of padding rows does not change the logits of tokens.
TEST(HfTraps, VocabularyPadding) {
  const HfFolder folder(golden("sharded"));
  const SafetensorsFile expected(golden("sharded") / "expected.safetensors");
  const std::vector<float> want = expected.read_floats("logits");
  for (const std::int64_t multiple : {1, 32, 128}) {
    ModelConfig model = folder.model();
    model.make_vocab_size_divisible_by = multiple;
    const std::vector<float> logits = logits_of(model, folder, expected);
    ASSERT_EQ(logits.size(), want.size());
    EXPECT_LT(relative_difference(logits, want), limit) << multiple;
  }
}

// The normalised value is rounded to bf16 before the weight is applied; rounding once at the end gives other bits.
TEST(HfTraps, NormCastOrder) {
  const SafetensorsFile file(golden("norm_cast_order") / "expected.safetensors");
  const auto copy = [&](const char* name) {
    const StoredTensor stored = file.get(name);
    std::vector<BFloat16> out(stored.bytes.size() / sizeof(BFloat16));
    std::memcpy(out.data(), stored.bytes.data(), stored.bytes.size());
    return out;
  };
  std::vector<BFloat16> x = copy("x"), weight = copy("weight"), want = copy("y"), y(want.size());
  const std::int64_t rows = 32, width = 64;
  std::vector<float> rstd(static_cast<std::size_t>(rows));
  Backend backend = make_backend({.device = DeviceChoice::cpu, .threads = 1});
  (*backend.ops)(NormArgs{.kind = NormKind::rms_norm,
                          .x = make_tensor(x.data(), shape(rows, width), DType::bf16),
                          .weight = make_tensor(weight.data(), shape(width), DType::bf16),
                          .y = make_tensor(y.data(), shape(rows, width), DType::bf16),
                          .rstd = make_tensor(rstd.data(), shape(rows), DType::f32),
                          .eps = 1e-5f});
  int equal = 0, rounded_once = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float r = rstd[i / width], exact = to_float(x[i]) * r * to_float(weight[i % width]);
    equal += to_float(y[i]) == to_float(want[i]) ? 1 : 0;
    rounded_once += to_float(to_bf16(exact)) == to_float(want[i]) ? 1 : 0;
  }
  EXPECT_GE(equal, 2040) << "of 2048";
  EXPECT_LT(rounded_once, 1900) << "the other order would go unseen";
}

}  // namespace
}  // namespace tera::test
