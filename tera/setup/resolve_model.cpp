#include "tera/setup/resolve_model.h"

#include <algorithm>

#include "tera/base/error.h"
#include "tera/base/nearest.h"
#include "tera/setup/resolve_mla.h"
#include "tera/setup/resolve_moe.h"
#include "tera/tokenizer/make_tokenizer.h"

namespace tera {
namespace {

constexpr std::int64_t byte_tokenizer_vocab = 512;

// For a module name of Megatron-LM: our name of it, as the end of a message; else empty.
std::string_view megatron_recompute_hint(std::string_view name) {
  if (name == "core_attn") return "; scores of attention are never kept, so there is nothing to name";
  if (name == "moe_act") return "; it is part of activation";
  if (name == "mlp" || name == "moe" || name == "shared_experts")
    return "; activation and layernorm are what can be made again of it alone, recompute_granularity=full makes whole "
           "layers";
  return {};
}

std::string_view megatron_offload_hint(std::string_view name) {
  if (name == "expert_fc1") return "; mlp_fc1 is that of experts, too";
  if (name == "moe_act") return "; mlp_act is that of experts, too";
  if (name == "fused_group_mlp") return "; mlp is that of experts, too";
  if (name == "layernorm") return "; the inputs of norms are attn_norm and mlp_norm";
  return {};
}

// Resolves the model section. Every number is within its limits, or zero if it was not given, which has been reported.
class ModelResolver {
 public:
  ModelResolver(const RunConfig& config, int tp, Report& report)
      : config_(config), model_(config.model), tp_(tp), report_(report) {}

  ModelShape resolve() {
    copy_plain_values();
    resolve_heads();
    resolve_ffn();
    shape_.moe = resolve_moe(config_, shape_, report_);
    resolve_vocab();
    resolve_positions();
    resolve_windows();
    resolve_mtp();
    resolve_selective_recompute();
    resolve_full_recompute();
    resolve_offload();
    check_freeze();
    check_size();
    return std::move(shape_);
  }

 private:
  void copy_plain_values() {
    shape_.family = model_.arch;
    shape_.num_layers = model_.num_layers;
    shape_.hidden = model_.hidden_size;
    shape_.norm = model_.normalization;
    shape_.norm_eps = static_cast<float>(model_.layernorm_epsilon);
    shape_.activation = model_.activation;
    shape_.linear_bias = model_.add_bias_linear;
    shape_.qkv_bias = model_.add_bias_linear || model_.add_qkv_bias;
    shape_.out_bias = model_.add_attention_output_bias;
    shape_.mlp_bias = model_.add_mlp_bias;
    shape_.qk_norm = model_.qk_layernorm;
    shape_.tied_embeddings = !model_.untie_embeddings_and_output_weights;
    shape_.pad_vocab_in_softmax = model_.pad_vocab_in_softmax;
    shape_.init_std = static_cast<float>(model_.init_method_std);
    shape_.hidden_dropout = static_cast<float>(model_.hidden_dropout);
    shape_.attention_dropout = static_cast<float>(model_.attention_dropout);
    shape_.freeze = model_.freeze;
  }

  void resolve_heads() {
    shape_.mla = resolve_mla(config_, report_);
    const std::int64_t heads = shape_.heads = model_.num_attention_heads;
    const bool all = shape_.mla || model_.num_query_groups == 0;
    const std::int64_t groups = shape_.kv_heads = all ? heads : model_.num_query_groups;
    if (heads > 0 && groups > 0 && heads % groups != 0)
      report_.broken("model.num_query_groups", "must divide num_attention_heads, which is {}; nearest: {}", heads,
                     nearest_divisors(heads, groups));
    shape_.head_dim = shape_.mla ? shape_.mla->nope + shape_.mla->rotary : model_.kv_channels;
    if (shape_.mla || model_.kv_channels != 0 || heads <= 0 || model_.hidden_size <= 0) return;
    if (model_.hidden_size % heads == 0) {
      shape_.head_dim = model_.hidden_size / heads;
    } else {
      report_.broken("model.num_attention_heads",
                     "must divide hidden_size, which is {}, unless kv_channels is given; nearest: {}",
                     model_.hidden_size, nearest_divisors(model_.hidden_size, heads));
    }
  }

  void resolve_ffn() {
    shape_.ffn = model_.ffn_hidden_size;
    if (model_.ffn_hidden_size != 0 || model_.hidden_size <= 0) return;
    shape_.ffn = is_gated(model_.activation) ? model_.hidden_size * 8 / 3 / 64 * 64 : model_.hidden_size * 4;
    if (shape_.ffn == 0) report_.missing("model.ffn_hidden_size", "hidden_size is too small to derive it");
  }

  void resolve_vocab() {
    const TokenizerKind kind = config_.tokenizer.tokenizer_type;
    shape_.vocab = model_.vocab_size == 0 ? tokenizer_vocab(kind) : model_.vocab_size;
    // Mock data are drawn from the model's own vocabulary; no tokenizer is involved.
    const bool too_small = shape_.vocab > 0 && shape_.vocab < byte_tokenizer_vocab;
    if (kind == TokenizerKind::byte && too_small && config_.dataset.kind == DatasetKind::text)
      report_.broken("model.vocab_size", "smaller than ByteTokenizer's vocabulary, which is {}", byte_tokenizer_vocab);
    const std::int64_t multiple = model_.make_vocab_size_divisible_by * tp_;
    if (multiple > 0 && shape_.vocab > 0) shape_.padded_vocab = (shape_.vocab + multiple - 1) / multiple * multiple;
  }

  // The vocabulary size of the tokenizer; zero if it is not known, which has been reported.
  std::int64_t tokenizer_vocab(TokenizerKind kind) {
    if (kind == TokenizerKind::byte) return byte_tokenizer_vocab;
    if (kind == TokenizerKind::null && config_.tokenizer.vocab_size == 0) {
      report_.missing("model.vocab_size", "tokenizer.tokenizer_type=NullTokenizer does not know it");
      return 0;
    }
    try {
      return make_tokenizer(config_.tokenizer.options())->vocab_size();
    } catch (const UserError& error) {
      report_.broken("model.vocab_size", "is left to the tokenizer, but {}", error.what());
      return 0;
    }
  }

  void resolve_positions() {
    const std::int64_t sequence = config_.train.seq_length;
    shape_.positions = model_.position_embedding_type;
    shape_.max_positions = model_.max_position_embeddings == 0 ? sequence : model_.max_position_embeddings;
    if (shape_.max_positions > 0 && sequence > shape_.max_positions)
      report_.broken("train.seq_length", "longer than model.max_position_embeddings, which is {}",
                     shape_.max_positions);
    if (shape_.positions == PositionKind::rope) {
      resolve_rope();
    } else if (model_.rope_scaling.type != RopeScalingKind::none) {
      report_.broken("model.rope_scaling.type", "needs position_embedding_type=rope");
    }
  }

  void resolve_rope() {
    shape_.rope = {
        .base = model_.rotary_base,
        .rotary_dim = static_cast<std::int64_t>(static_cast<double>(shape_.head_dim) * model_.rotary_percent),
        .interleaved = model_.rotary_interleaved,
        .scaling = model_.rope_scaling};
    if (shape_.mla) {
      shape_.rope.rotary_dim = shape_.mla->rotary;
      shape_.rope.scaling = mla_scaling(model_.mla);
      if (shape_.rope.scaling.original_max_position_embeddings == 0)
        shape_.rope.scaling.original_max_position_embeddings = shape_.max_positions;
      return;
    }
    const bool full_rotary = model_.rotary_percent == 1;
    if (shape_.head_dim > 0 && (shape_.rope.rotary_dim % 2 != 0 || shape_.rope.rotary_dim == 0))
      report_.broken(full_rotary ? "model.kv_channels" : "model.rotary_percent",
                     "RoPE turns pairs of channels, but {} of each head's {} would turn; make it even",
                     shape_.rope.rotary_dim, shape_.head_dim);
    RopeScaling& scaling = shape_.rope.scaling;
    if (scaling.type == RopeScalingKind::none && scaling.factor != 1)
      report_.broken("model.rope_scaling.factor", "needs rope_scaling.type: linear, llama3 or yarn");
    if (scaling.original_max_position_embeddings == 0) scaling.original_max_position_embeddings = shape_.max_positions;
    if (scaling.type == RopeScalingKind::llama3 && scaling.high_freq_factor <= scaling.low_freq_factor)
      report_.broken("model.rope_scaling.high_freq_factor", "must be above low_freq_factor, which is {}",
                     scaling.low_freq_factor);
    if (scaling.type == RopeScalingKind::yarn && scaling.beta_fast <= scaling.beta_slow)
      report_.broken("model.rope_scaling.beta_fast", "must be above beta_slow, which is {}", scaling.beta_slow);
  }

  void resolve_windows() {
    shape_.window.assign(static_cast<std::size_t>(shape_.num_layers), model_.window_size);
    const std::int64_t full = std::min(model_.max_window_layers, shape_.num_layers);
    for (std::int64_t layer = 0; layer < full; ++layer) shape_.window[static_cast<std::size_t>(layer)] = 0;
    if (!model_.layer_types.empty()) resolve_layer_types();
  }

  void resolve_mtp() {
    constexpr std::string_view key = "model.mtp_num_layers";
    shape_.mtp_layers = model_.mtp_num_layers;
    shape_.mtp_loss_factor = model_.mtp_loss_scaling_factor;
    if (model_.mtp_num_layers == 0) {
      if (model_.mtp_loss_scaling_factor != ModelConfig{}.mtp_loss_scaling_factor)
        report_.broken("model.mtp_loss_scaling_factor", "needs mtp_num_layers, which is 0");
      return;
    }
    if (shape_.positions == PositionKind::learned_absolute)
      report_.broken(key, "needs position_embedding_type=rope or none: learned positions belong to the first layer");
    if (config_.train.seq_length > 0 && config_.train.seq_length <= model_.mtp_num_layers)
      report_.broken(key, "looks that far ahead in sequences of train.seq_length={}; at most {} do",
                     config_.train.seq_length, config_.train.seq_length - 1);
  }

  void resolve_layer_types() {
    if (model_.layer_types.size() != shape_.window.size())
      return report_.broken("model.layer_types", "has {} entries for {} layers", model_.layer_types.size(),
                            shape_.num_layers);
    if (model_.max_window_layers != 0) report_.broken("model.max_window_layers", "give either this or layer_types");
    for (std::size_t layer = 0; layer < shape_.window.size(); ++layer) {
      const std::string& type = model_.layer_types[layer];
      if (type != "full_attention" && type != "sliding_attention")
        report_.broken("model.layer_types", "'{}' is not full_attention or sliding_attention", type);
      if (type == "full_attention") shape_.window[layer] = 0;
    }
  }

  void resolve_selective_recompute() {
    const bool selective = model_.recompute_granularity == RecomputeGranularity::selective;
    if (selective && model_.recompute_modules.empty())
      report_.missing("model.recompute_modules", "recompute_granularity=selective needs a list of {}",
                      list_names<RecomputeModule>());
    if (!selective && !model_.recompute_modules.empty())
      report_.broken("model.recompute_modules", "needs recompute_granularity=selective");
    for (const std::string& name : model_.recompute_modules) {
      const auto module = parse_enum<RecomputeModule>(name);
      if (!module)
        report_.broken("model.recompute_modules", "'{}' is not {}{}", name, list_names<RecomputeModule>(),
                       megatron_recompute_hint(name));
      if (module == RecomputeModule::layernorm) shape_.recompute.layernorm = true;
      if (module == RecomputeModule::activation) shape_.recompute.activation = true;
      if (module == RecomputeModule::mla_up_proj) shape_.recompute.mla_up_proj = true;
      if (module == RecomputeModule::mla_up_proj && !shape_.mla)
        report_.broken("model.recompute_modules", "mla_up_proj needs multi_latent_attention");
    }
  }

  void resolve_full_recompute() {
    RecomputeShape& recompute = shape_.recompute;
    recompute.full = model_.recompute_granularity == RecomputeGranularity::full;
    if (!recompute.full) {
      if (model_.recompute_num_layers != 0)
        report_.broken("model.recompute_num_layers", "needs recompute_granularity=full; or leave it 0");
      if (model_.recompute_method != RecomputeMethod::uniform)
        report_.broken("model.recompute_method", "needs recompute_granularity=full");
      return;
    }
    const std::int64_t every_layer = model_.recompute_method == RecomputeMethod::uniform ? 1 : shape_.all_layers();
    recompute.method = model_.recompute_method;
    recompute.layers = model_.recompute_num_layers == 0 ? every_layer : model_.recompute_num_layers;
  }

  void resolve_offload() {
    const RecomputeShape& recompute = shape_.recompute;
    const bool only_layer_inputs =
        recompute.full && (recompute.method == RecomputeMethod::uniform || recompute.layers >= shape_.all_layers());
    for (const std::string& name : model_.offload_modules) {
      const auto module = parse_enum<OffloadModule>(name);
      if (!module)
        report_.broken("model.offload_modules", "'{}' is not {}{}", name, list_names<OffloadModule>(),
                       megatron_offload_hint(name));
      else if (only_layer_inputs && module != OffloadModule::attn_norm)
        report_.broken("model.offload_modules",
                       "with recompute_granularity=full all that a layer keeps is its input, attn_norm; not '{}'",
                       name);
      else
        offload(*module);
    }
  }

  // A module cannot be both offloaded and recomputed; attention and mlp stand for the inputs that these blocks keep.
  void offload(OffloadModule module) {
    const RecomputeShape& recompute = shape_.recompute;
    OffloadShape& offload = shape_.offload;
    const auto kept = [&](RecomputeModule redone, bool is_redone) {
      if (is_redone)
        report_.broken("model.offload_modules", "'{}' is not kept, because recompute_modules names {}; take one away",
                       name_of(module), name_of(redone));
      return !is_redone;
    };
    const auto norm_is_kept = [&] { return kept(RecomputeModule::layernorm, recompute.layernorm); };
    switch (module) {
      case OffloadModule::attn_norm: offload.attn_norm = true; break;
      case OffloadModule::qkv_linear: offload.qkv_linear = norm_is_kept(); break;
      case OffloadModule::core_attn:
        offload.core_attn = kept(RecomputeModule::mla_up_proj, recompute.mla_up_proj);
        break;
      case OffloadModule::attn_proj: offload.attn_proj = true; break;
      case OffloadModule::mlp_norm: offload.mlp_norm = true; break;
      case OffloadModule::mlp_fc1: offload.mlp_fc1 = norm_is_kept(); break;
      case OffloadModule::mlp_act: offload.mlp_act = true; break;
      case OffloadModule::mlp_fc2: offload.mlp_fc2 = kept(RecomputeModule::activation, recompute.activation); break;
      case OffloadModule::attention:
        offload.attn_proj = true;
        offload.core_attn = !recompute.mla_up_proj;
        offload.qkv_linear = !recompute.layernorm;
        break;
      case OffloadModule::mlp:
        offload.mlp_act = true;
        offload.mlp_fc1 = !recompute.layernorm;
        offload.mlp_fc2 = !recompute.activation;
        break;
    }
  }

  void check_freeze() {
    for (const std::string& pattern : model_.freeze)
      if (pattern.empty()) report_.broken("model.freeze", "an empty pattern matches nothing");
  }

  // Sizes are bounded one by one; their products are not.
  void check_size() {
    constexpr double max_parameters = 0x1p60;
    const auto as_double = [](std::int64_t x) { return static_cast<double>(x); };
    double attention = 2.0 * (as_double(shape_.heads) + as_double(shape_.kv_heads)) * as_double(shape_.head_dim);
    if (shape_.mla) attention += as_double(shape_.mla->q_lora) + as_double(shape_.mla->kv_lora);
    double ffn = as_double(shape_.ffn),
           chosen = 0;  // ffn: width of all experts of a layer; chosen: values of a token in its experts
    if (shape_.moe) {
      ffn += as_double(shape_.moe->experts) * as_double(shape_.moe->ffn) + as_double(shape_.moe->shared_ffn);
      chosen = std::max(
          as_double(shape_.moe->router.topk) * std::max(2.0 * as_double(shape_.moe->ffn), as_double(shape_.hidden)),
          2.0 * as_double(shape_.moe->shared_ffn));
    }
    const double per_layer = as_double(shape_.hidden) * (attention + 3.0 * ffn);
    const double parameters =
        as_double(shape_.all_layers()) * per_layer + 2.0 * as_double(shape_.padded_vocab) * as_double(shape_.hidden);
    if (parameters > max_parameters)
      report_.broken("model.hidden_size",
                     "together with the other sizes gives about {:.2g} parameters, more than can be counted",
                     parameters);
    check_activations(std::max(
        {attention, 2.0 * as_double(shape_.ffn), chosen, as_double(shape_.padded_vocab), as_double(shape_.hidden)}));
  }

  // Bounds the largest tensor of a forward pass, `widest` values per token. The limit is far above any memory, and low
  // enough that bytes, and workspaces that hold a tensor once per thread, fit in 64 bits.
  void check_activations(double widest) {
    constexpr double max_values = 0x1p50;
    const double rows =
        static_cast<double>(config_.train.micro_batch_size) * static_cast<double>(config_.train.seq_length);
    if (rows * widest > max_values)
      report_.broken("train.seq_length",
                     "times micro_batch_size and the model's width, which is up to {:.2g} values a token, needs more "
                     "memory than can be addressed",
                     widest);
  }

  const RunConfig& config_;
  const ModelConfig& model_;
  const int tp_;
  Report& report_;
  ModelShape shape_;
};

}  // namespace

ModelShape resolve_model(const RunConfig& config, int tp, Report& report) {
  return ModelResolver(config, tp, report).resolve();
}

}  // namespace tera
