// GPT-2 and GPT-3: learned positions, LayerNorm, GELU, biases, tied embeddings. Files hold fused [Q | K | V] and
// weights as [in,out].

#include <algorithm>
#include <array>
#include <utility>

#include "tera/base/error.h"
#include "tera/hf/config/hf_decoder.h"
#include "tera/models/families/families.h"

namespace tera::gpt {
namespace {

// LayerNorm, learned positions, biases everywhere and a tied head are what ModelConfig starts from.
void set_defaults(ModelConfig& model) {
  model.activation = Activation::gelu_tanh;
  model.hidden_dropout = 0.1;
  model.attention_dropout = 0.1;
}

// Embeddings and residual branches have one dropout rate here; it is a default that a run may change.
void read_hf(const HfFields& config, ModelConfig& model) {
  model.vocab_size = config.size({"vocab_size"}, 50257);
  model.hidden_size = config.size({"n_embd", "hidden_size"}, 768);
  model.num_layers = config.size({"n_layer", "num_hidden_layers"}, 12);
  model.num_attention_heads = model.num_query_groups = config.size({"n_head", "num_attention_heads"}, 12);
  model.max_position_embeddings = config.size({"n_positions", "max_position_embeddings"}, 1024);
  const std::int64_t wide = 4 * model.hidden_size;
  model.ffn_hidden_size = config.is_null("n_inner") ? wide : config.size({"n_inner"}, wide);
  model.layernorm_epsilon = config.number("layer_norm_epsilon").value_or(1e-5);
  model.activation = read_hf_activation(config, "activation_function", "gelu_new", false);
  model.hidden_dropout = config.number("resid_pdrop").value_or(0.1);
  model.attention_dropout = config.number("attn_pdrop").value_or(0.1);
  refuse_hf_flag(config, "scale_attn_weights", true);
  refuse_hf_flag(config, "scale_attn_by_inverse_layer_idx", false);
  const std::int64_t heads = model.num_attention_heads;
  require_user(model.hidden_size % heads == 0, "{}n_embd {} is no multiple of n_head {}", config.where(),
               model.hidden_size, heads);
  model.kv_channels = model.hidden_size / heads;
}

void write_hf(const ModelConfig& model, HfJson& config) {
  config["vocab_size"] = model.vocab_size;
  config["n_embd"] = model.hidden_size;
  config["n_layer"] = model.num_layers;
  config["n_head"] = model.num_attention_heads;
  config["n_positions"] = config["n_ctx"] = model.max_position_embeddings;
  config["n_inner"] = model.ffn_hidden_size;
  config["activation_function"] = std::string(hf_activation(model.activation));
  config["layer_norm_epsilon"] = model.layernorm_epsilon;
  config["resid_pdrop"] = config["embd_pdrop"] = model.hidden_dropout;
  config["attn_pdrop"] = model.attention_dropout;
}

std::string_view hf_key(std::string_view key) {
  using Pair = std::pair<std::string_view, std::string_view>;
  constexpr std::array names{Pair{"num_layers", "n_layer"},
                             Pair{"hidden_size", "n_embd"},
                             Pair{"ffn_hidden_size", "n_inner"},
                             Pair{"num_attention_heads", "n_head"},
                             Pair{"num_query_groups", "n_head"},
                             Pair{"kv_channels", "n_embd"},
                             Pair{"max_position_embeddings", "n_positions"},
                             Pair{"layernorm_epsilon", "layer_norm_epsilon"},
                             Pair{"init_method_std", "initializer_range"},
                             Pair{"hidden_dropout", "resid_pdrop"},
                             Pair{"attention_dropout", "attn_pdrop"}};
  const auto known = std::ranges::find(names, key, &Pair::first);
  return known == names.end() ? key : known->second;
}

FamilyNames names() {
  return {.embedding = "transformer.wte",
          .positions = "transformer.wpe",
          .layer = "transformer.h.",
          .attention_norm = "ln_1",
          .out = "attn.c_proj",
          .mlp_norm = "ln_2",
          .down = "mlp.c_proj",
          .qkv = {"attn.c_attn"},
          .q_norm = "attn.q_norm",
          .k_norm = "attn.k_norm",
          .gated_up = {"mlp.c_gate", "mlp.c_fc"},
          .up = "mlp.c_fc",
          .final_norm = "transformer.ln_f",
          .head = "lm_head",
          .transposed = true,
          .mla = {},
          .experts = {}};
}

}  // namespace

extern const ModelFamily family{.name = "gpt",
                                .hf_type = "gpt2",
                                .hf_class = "GPT2LMHeadModel",
                                .hf_since = "4.46.0",
                                .defaults = set_defaults,
                                .read_hf = read_hf,
                                .write_hf = write_hf,
                                .hf_key = hf_key,
                                .names = names,
                                .make_spec = make_decoder_spec,
                                .may_have_mla = false,
                                .gpt2_tokenizer = true};

}  // namespace tera::gpt
