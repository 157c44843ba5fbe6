#include "tera/config/sections/model.h"

#include "tera/config/field.h"
#include "tera/config/limits.h"

namespace tera {

std::span<const Field> RopeScaling::fields() {
  using C = RopeScaling;
  static constexpr std::array table{
      field<&C::type>("type", "how positions beyond the original context are folded in").numerics(),
      field<&C::factor>("factor", "how many times longer the context becomes").at_least(1).numerics(),
      field<&C::low_freq_factor>("low_freq_factor", "llama3: wavelengths above original / low_freq_factor are divided")
          .above(0)
          .numerics(),
      field<&C::high_freq_factor>("high_freq_factor", "llama3: wavelengths below original / high_freq_factor stay")
          .above(0)
          .numerics(),
      field<&C::original_max_position_embeddings>("original_max_position_embeddings",
                                                  "llama3, yarn: context before scaling; 0: max_position_embeddings")
          .within(0, limits::max_index)
          .numerics(),
      field<&C::beta_fast>("beta_fast", "yarn: turns over the original context above which a channel stays")
          .above(0)
          .numerics(),
      field<&C::beta_slow>("beta_slow", "yarn: turns over the original context below which a channel is divided")
          .above(0)
          .numerics(),
      field<&C::mscale>("mscale", "yarn: numerator of the attention factor; 0: not given").at_least(0).numerics(),
      field<&C::mscale_all_dim>("mscale_all_dim", "yarn: denominator of the attention factor; 0: not given")
          .at_least(0)
          .numerics(),
      field<&C::attention_factor>("attention_factor", "yarn: factor on cos and sin; 0: from factor and mscale")
          .at_least(0)
          .numerics(),
      field<&C::truncate>("truncate", "yarn: round the ends of the ramp to whole channels").numerics(),
  };
  return table;
}

std::span<const Field> ModelConfig::fields() {
  using C = ModelConfig;
  static constexpr std::array table{
      field<&C::hf>("hf",
                    "Hugging Face folder to take the model's shape and initial weights from; the other keys of this "
                    "section then may say nothing else about the shape")
          .free()
          .hf_default(),
      field<&C::arch>("arch", "model family; sets the defaults of this section").must_be_given().numerics(),
      field<&C::num_layers>("num_layers", "transformer layers").within(1, limits::max_layers).must_be_given().shapes(),
      field<&C::hidden_size>("hidden_size", "width of the residual stream")
          .within(1, limits::max_width)
          .must_be_given()
          .shapes(),
      field<&C::ffn_hidden_size>(
          "ffn_hidden_size",
          "width of the feed-forward part; 0: 4 x hidden_size, or 8/3 x hidden_size down to a multiple "
          "of 64 with a gated activation")
          .within(0, limits::max_width)
          .shapes()
          .derived_from_0(),
      field<&C::num_attention_heads>("num_attention_heads", "query heads")
          .within(1, limits::max_width)
          .must_be_given()
          .shapes(),
      field<&C::num_query_groups>("num_query_groups", "key and value heads; 0: num_attention_heads")
          .within(0, limits::max_width)
          .shapes()
          .derived_from_0(),
      field<&C::kv_channels>("kv_channels", "size of a head; 0: hidden_size / num_attention_heads")
          .within(0, limits::max_width)
          .shapes()
          .derived_from_0(),
      field<&C::vocab_size>("vocab_size", "token ids the model knows; 0: the tokenizer's")
          .within(0, limits::max_index)
          .numerics(),
      field<&C::make_vocab_size_divisible_by>(
          "make_vocab_size_divisible_by",
          "embedding rows are padded to a multiple of this times tensor_model_parallel_size")
          .within(1, limits::max_width)
          .free()
          .hf_default(),
      field<&C::max_position_embeddings>("max_position_embeddings", "longest sequence; 0: train.seq_length")
          .within(0, limits::max_index)
          .shapes()
          .derived_from_0(),
      field<&C::normalization>("normalization", "kind of norm").shapes(),
      field<&C::layernorm_epsilon>("layernorm_epsilon", "added to the variance or mean square")
          .within(1e-12, 1)
          .numerics(),
      field<&C::activation>("activation", "feed-forward activation; swiglu and the geglu kinds are gated").shapes(),
      field<&C::position_embedding_type>("position_embedding_type", "how the model knows positions").shapes(),
      field<&C::rotary_base>("rotary_base", "RoPE base").above(1).numerics(),
      field<&C::rotary_percent>("rotary_percent", "part of each head that RoPE turns").above(0).at_most(1).numerics(),
      field<&C::rotary_interleaved>("rotary_interleaved", "RoPE pairs channels 2i and 2i+1 instead of i and i + half")
          .numerics(),
      field<&C::rope_scaling>("rope_scaling", "RoPE for contexts longer than trained"),
      field<&C::add_bias_linear>("add_bias_linear", "biases on all linear layers").shapes(),
      field<&C::add_qkv_bias>("add_qkv_bias", "biases on the q, k and v projections").shapes(),
      field<&C::add_attention_output_bias>("add_attention_output_bias", "a bias on attention's output projection")
          .shapes(),
      field<&C::add_mlp_bias>("add_mlp_bias", "biases on the feed-forward part's linear layers").shapes(),
      field<&C::qk_layernorm>("qk_layernorm", "norm over each head of q and k before RoPE").shapes(),
      field<&C::window_size>("window_size", "a query sees this many keys, its own included; 0: all before it")
          .within(0, limits::max_index)
          .numerics(),
      field<&C::max_window_layers>("max_window_layers", "layers below this number see everything despite window_size")
          .within(0, limits::max_layers)
          .numerics(),
      field<&C::layer_types>("layer_types",
                             "full_attention or sliding_attention for each layer, in place of max_window_layers")
          .numerics(),
      field<&C::multi_latent_attention>("multi_latent_attention",
                                        "queries, keys and values are made of narrow latents, by the keys of mla")
          .shapes(),
      field<&C::mla>("mla", "Multi-head latent attention."),
      field<&C::moe>("moe", "Layers of experts in place of one feed-forward part."),
      field<&C::mtp_num_layers>("mtp_num_layers",
                                "layers behind the last that train the model to predict further ahead, each one token "
                                "more (multi-token prediction); generation leaves them out")
          .within(0, max_mtp_layers)
          .numerics()
          .hf_default(),
      field<&C::mtp_loss_scaling_factor>("mtp_loss_scaling_factor",
                                         "what the mean loss of the layers of mtp_num_layers counts beside the loss")
          .within(0, 1000)
          .numerics()
          .hf_default(),
      field<&C::untie_embeddings_and_output_weights>("untie_embeddings_and_output_weights",
                                                     "the output head has weights of its own")
          .shapes(),
      field<&C::init_method_std>("init_method_std", "standard deviation of initial weights")
          .within(0, 100)
          .numerics()
          .hf_default(),
      field<&C::hidden_dropout>("hidden_dropout", "dropout on embeddings and block outputs")
          .within(0, 0.99)
          .numerics()
          .hf_default(),
      field<&C::attention_dropout>("attention_dropout", "dropout on attention probabilities")
          .within(0, 0.99)
          .numerics()
          .hf_default(),
      field<&C::pad_vocab_in_softmax>("pad_vocab_in_softmax",
                                      "padding rows take part in the softmax, as in Megatron-LM")
          .numerics()
          .hf_default(),
      field<&C::recompute_granularity>("recompute_granularity",
                                       "forward work redone in backward to save memory: none, the parts in "
                                       "recompute_modules, or whole layers")
          .free()
          .hf_default(),
      field<&C::recompute_modules>("recompute_modules", "with selective: layernorm, activation, mla_up_proj")
          .free()
          .hf_default(),
      field<&C::recompute_method>("recompute_method",
                                  "with full: uniform redoes groups of recompute_num_layers layers, each as one; block "
                                  "redoes the first recompute_num_layers layers of each virtual stage, each by itself")
          .free()
          .hf_default(),
      field<&C::recompute_num_layers>("recompute_num_layers",
                                      "with full: see recompute_method; 0: every layer by itself")
          .within(0, limits::max_layers)
          .free()
          .hf_default(),
      field<&C::offload_modules>("offload_modules",
                                 "parts of layers whose inputs wait on the host between forward and backward: "
                                 "attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, mlp_fc1, mlp_act, mlp_fc2; "
                                 "attention and mlp are all three inside each")
          .free()
          .hf_default(),
      field<&C::freeze>("freeze",
                        "patterns (* and ?) over parameter names that are not trained; quoted, as "
                        "YAML has a use of its own for *: [\"*experts*\"]")
          .numerics()
          .hf_default(),
  };
  return table;
}

RopeScaling mla_scaling(const MlaConfig& mla) {
  if (mla.rotary_scaling_factor == 1) return {};
  return {.type = RopeScalingKind::yarn,
          .factor = mla.rotary_scaling_factor,
          .original_max_position_embeddings = mla.original_max_position_embeddings,
          .beta_fast = mla.beta_fast,
          .beta_slow = mla.beta_slow,
          .mscale = mla.mscale,
          .mscale_all_dim = mla.mscale_all_dim};
}

}  // namespace tera
