// The registry of model families, and families that a program brings along.

#include "tera/config/family.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "tera/base/error.h"
#include "tera/hf/config/hf_config.h"
#include "tera/hf/config/hf_decoder.h"
#include "tera/models/families/families.h"
#include "tera/nn/mixers/attention.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

TEST(Families, AreListedByNameAndOnceEach) {
  std::set<std::string_view> types;
  std::string_view before;
  for (const ModelFamily* family : built_in_families()) {
    EXPECT_LT(before, family->name) << "families are in the order of their names";
    EXPECT_TRUE(types.insert(family->hf_type).second) << family->hf_type;
    EXPECT_EQ(&family_named(family->name), family);
    EXPECT_EQ(find_hf_family(family->hf_type, built_in_families()), family);
    before = family->name;
  }
  EXPECT_EQ(find_family("no such family", built_in_families()), nullptr);
}

// A family of a program that links the library: Llama, but attention has a window of three keys in every layer, and
// config.json has the width of the stream under another name.
ModelSpec make_narrow_spec(const ModelShape& model, std::uint64_t dropout_seed) {
  ModelSpec spec = make_decoder_spec(model, dropout_seed);
  for (LayerSpec& layer : spec.layers) layer.sublayers[0].branches[0].branch.as<AttentionSpec>()->window = 3;
  return spec;
}

void read_narrow(const HfFields& config, ModelConfig& model) {
  model.vocab_size = config.size({"vocab_size"}, 100);
  model.hidden_size = config.size({"stream_width"}, 32);
  model.num_layers = model.num_attention_heads = model.num_query_groups = 2;
  model.kv_channels = 16;
  model.ffn_hidden_size = 48;
  model.max_position_embeddings = 64;
}

void write_narrow(const ModelConfig& model, HfJson& config) {
  config["vocab_size"] = model.vocab_size;
  config["stream_width"] = model.hidden_size;
}

const ModelFamily narrow{.name = "narrow",
                         .hf_type = "narrow_model",
                         .hf_class = "NarrowForCausalLM",
                         .hf_since = "4.46.0",
                         .defaults = set_llama_defaults,
                         .read_hf = read_narrow,
                         .write_hf = write_narrow,
                         .names = llama_names,
                         .make_spec = make_narrow_spec};
constexpr std::array brought_along{&narrow};

constexpr std::string_view config =
    "model: {arch: narrow, num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 100}\n"
    "train: {seq_length: 16}\n";

TEST(Families, ThoseOfAProgramAreFoundByTheirName) {
  const LoadedConfig loaded = load_config_text(config, "text", brought_along);
  EXPECT_EQ(loaded.config.model.arch, &narrow);
  EXPECT_EQ(loaded.origins.at("model.normalization"), "default of model.arch=narrow");
  const ModelShape model = resolve(loaded.config, Purpose::inspect).model;
  const ModelSpec spec = make_spec(model, 1);
  ASSERT_EQ(spec.layers.size(), 2u);
  EXPECT_EQ(spec.layers[1].sublayers[0].branches[0].branch.as<AttentionSpec>()->window, 3);
}

TEST(Families, ThoseOfAProgramAreNotKnownToOthers) {
  EXPECT_TRUE(contains(message_of<UserError>([] { load_config_text(config, "text"); }),
                       "model.arch: 'narrow' is not deepseek_v2"));
  EXPECT_TRUE(contains(message_of<UserError>([] { load_config_text("model: {arch: llama}", "text", brought_along); }),
                       "model.arch: 'llama' is not narrow"));
}

TEST(Families, ThoseOfAProgramReadAndWriteConfigJson) {
  constexpr std::string_view text = R"({"model_type": "narrow_model", "stream_width": 32, "vocab_size": 90})";
  const ModelConfig model = parse_hf_config(text, "config.json", brought_along);
  EXPECT_EQ(model.arch, &narrow);
  EXPECT_EQ(model.hidden_size, 32);
  RunConfig run;
  run.model = model;
  run.train.seq_length = 16;
  const std::string written = format_hf_config(resolve(run, Purpose::inspect).model, {});
  EXPECT_EQ(parse_hf_config(written, "written", brought_along), model);
  EXPECT_TRUE(contains(message_of<UserError>([&] { parse_hf_config(written, "written"); }), "model_type"));
}

}  // namespace
}  // namespace tera::test
