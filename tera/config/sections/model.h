#pragma once
// The model as the user writes it. Members have the names of the YAML keys; zero means "derive it" where the help of
// the key says so (tera/config/sections/model.cpp), and resolve() does the deriving without writing back.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tera/base/kinds.h"
#include "tera/config/sections/mla.h"
#include "tera/config/sections/moe.h"

namespace tera {

struct Field;
struct ModelFamily;

// Limit on multi-token prediction (MTP) layers; per-layer metrics are arrays of this size.
inline constexpr std::int64_t max_mtp_layers = 16;
enum class PositionKind : std::uint8_t { learned_absolute, rope, none };
enum class RopeScalingKind : std::uint8_t { none, linear, llama3, yarn };
enum class RecomputeGranularity : std::uint8_t { none, selective, full };
// Full activation recomputation, with n = recompute_num_layers. uniform: groups of n layers are recomputed together;
// block: the first n layers of each virtual stage are recomputed.
enum class RecomputeMethod : std::uint8_t { uniform, block };
enum class RecomputeModule : std::uint8_t { layernorm, activation, mla_up_proj };
// Activations offloaded to the host between forward and backward: the input of the named module. attention and mlp
// stand for all inputs inside these blocks.
enum class OffloadModule : std::uint8_t {
  attn_norm,
  qkv_linear,
  core_attn,
  attn_proj,
  mlp_norm,
  mlp_fc1,
  mlp_act,
  mlp_fc2,
  attention,
  mlp
};

struct RopeScaling {
  RopeScalingKind type = RopeScalingKind::none;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;
  double mscale_all_dim = 0;
  double attention_factor = 0;
  bool truncate = true;

  static std::span<const Field> fields();
  bool operator==(const RopeScaling&) const = default;
};
RopeScaling mla_scaling(const MlaConfig& mla);  // YaRN, or none, as the keys of model.mla say

struct ModelConfig {
  std::string hf;                     // a Hugging Face folder, which decides the shape and gives the initial weights
  const ModelFamily* arch = nullptr;  // has no default: every run names its family
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_query_groups = 0;
  std::int64_t kv_channels = 0;
  std::int64_t vocab_size = 0;
  std::int64_t make_vocab_size_divisible_by = 128;
  std::int64_t max_position_embeddings = 0;
  NormKind normalization = NormKind::layer_norm;
  double layernorm_epsilon = 1e-5;
  Activation activation = Activation::gelu;
  PositionKind position_embedding_type = PositionKind::learned_absolute;
  double rotary_base = 10000;
  double rotary_percent = 1;
  bool rotary_interleaved = false;
  RopeScaling rope_scaling;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool add_attention_output_bias = false;
  bool add_mlp_bias = false;
  bool qk_layernorm = false;
  std::int64_t window_size = 0;
  std::int64_t max_window_layers = 0;
  std::vector<std::string> layer_types;
  bool multi_latent_attention = false;
  MlaConfig mla;
  MoeConfig moe;
  std::int64_t mtp_num_layers = 0;
  double mtp_loss_scaling_factor = 0.1;
  bool untie_embeddings_and_output_weights = false;
  double init_method_std = 0.02;
  double hidden_dropout = 0;
  double attention_dropout = 0;
  bool pad_vocab_in_softmax = false;
  RecomputeGranularity recompute_granularity = RecomputeGranularity::none;
  std::vector<std::string> recompute_modules;
  RecomputeMethod recompute_method = RecomputeMethod::uniform;
  std::int64_t recompute_num_layers = 0;
  std::vector<std::string> offload_modules;
  std::vector<std::string> freeze;

  static std::span<const Field> fields();
  bool operator==(const ModelConfig&) const = default;
};

template <>
struct EnumNames<PositionKind> {
  static constexpr std::array values{std::pair{PositionKind::learned_absolute, std::string_view("learned_absolute")},
                                     std::pair{PositionKind::rope, std::string_view("rope")},
                                     std::pair{PositionKind::none, std::string_view("none")}};
};
template <>
struct EnumNames<RopeScalingKind> {
  static constexpr std::array values{std::pair{RopeScalingKind::none, std::string_view("none")},
                                     std::pair{RopeScalingKind::linear, std::string_view("linear")},
                                     std::pair{RopeScalingKind::llama3, std::string_view("llama3")},
                                     std::pair{RopeScalingKind::yarn, std::string_view("yarn")}};
};
template <>
struct EnumNames<RecomputeGranularity> {
  static constexpr std::array values{std::pair{RecomputeGranularity::none, std::string_view("none")},
                                     std::pair{RecomputeGranularity::selective, std::string_view("selective")},
                                     std::pair{RecomputeGranularity::full, std::string_view("full")}};
};
template <>
struct EnumNames<RecomputeMethod> {
  static constexpr std::array values{std::pair{RecomputeMethod::uniform, std::string_view("uniform")},
                                     std::pair{RecomputeMethod::block, std::string_view("block")}};
};
template <>
struct EnumNames<RecomputeModule> {
  static constexpr std::array values{std::pair{RecomputeModule::layernorm, std::string_view("layernorm")},
                                     std::pair{RecomputeModule::activation, std::string_view("activation")},
                                     std::pair{RecomputeModule::mla_up_proj, std::string_view("mla_up_proj")}};
};
template <>
struct EnumNames<OffloadModule> {
  static constexpr std::array values{std::pair{OffloadModule::attn_norm, std::string_view("attn_norm")},
                                     std::pair{OffloadModule::qkv_linear, std::string_view("qkv_linear")},
                                     std::pair{OffloadModule::core_attn, std::string_view("core_attn")},
                                     std::pair{OffloadModule::attn_proj, std::string_view("attn_proj")},
                                     std::pair{OffloadModule::mlp_norm, std::string_view("mlp_norm")},
                                     std::pair{OffloadModule::mlp_fc1, std::string_view("mlp_fc1")},
                                     std::pair{OffloadModule::mlp_act, std::string_view("mlp_act")},
                                     std::pair{OffloadModule::mlp_fc2, std::string_view("mlp_fc2")},
                                     std::pair{OffloadModule::attention, std::string_view("attention")},
                                     std::pair{OffloadModule::mlp, std::string_view("mlp")}};
};

}  // namespace tera
