#include "tera/config/foreign_names.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace tera {
namespace {

constexpr std::array names{
    // Megatron-LM
    ForeignName{"tensor_parallel_size", "dist.tensor_model_parallel_size", ""},
    ForeignName{"pipeline_parallel_size", "dist.pipeline_model_parallel_size", ""},
    ForeignName{"expert_parallel_size", "dist.expert_model_parallel_size", ""},
    ForeignName{"num_layers_per_virtual_pipeline_stage", "dist.virtual_pipeline_model_parallel_size",
                "it counts the virtual stages of a rank, not the layers of one"},
    ForeignName{"num_virtual_stages_per_pipeline_rank", "dist.virtual_pipeline_model_parallel_size", ""},
    ForeignName{"decoder_first_pipeline_num_layers", "dist.num_layers_in_first_pipeline_stage", ""},
    ForeignName{"decoder_last_pipeline_num_layers", "dist.num_layers_in_last_pipeline_stage", ""},
    ForeignName{"moe_router_dtype", "", "routers always compute in fp32; leave it out"},
    ForeignName{"moe_grouped_gemm", "", "products of experts are always grouped; leave it out"},
    ForeignName{"moe_permute_fusion", "", "permuting rows is always fused; leave it out"},
    ForeignName{"moe_pad_expert_input_to_capacity", "",
                "with model.moe.expert_capacity_factor all sizes are always fixed; leave it out"},
    ForeignName{"moe_input_jitter_eps", "", "inputs of routers are never jittered; leave it out"},
    ForeignName{"moe_layer_freq", "model.moe.layer_freq",
                "a pattern of layers is said by model.moe.first_k_dense and model.moe.mlp_only_layers"},
    ForeignName{"moe_token_dispatcher_type", "model.moe.token_dispatcher_type", "it is allgather or alltoall"},
    ForeignName{"moe_enable_deepep", "", "model.moe.token_dispatcher_type is allgather or alltoall; leave it out"},
    ForeignName{"use_precision_aware_optimizer", "optimizer.exp_avg_dtype",
                "it and exp_avg_sq_dtype say what moments are stored as; there is no switch besides", "bf16"},
    ForeignName{"main_params_dtype", "", "main weights are always fp32; leave it out"},
    ForeignName{"main_grads_dtype", "", "main gradients are always fp32; leave it out"},
    ForeignName{"bf16", "mixed_precision.precision", "", "bf16"},
    ForeignName{"fp16", "mixed_precision.precision", "", "fp16"},
    ForeignName{"accumulate_allreduce_grads_in_fp32", "", "gradients are always fp32; leave it out"},
    ForeignName{"grad_reduce_in_fp32", "", "gradients are always fp32; leave it out"},
    ForeignName{"grad_reduce_in_bf16", "", "there is no such thing here: gradients are always fp32"},
    ForeignName{"optimizer_cpu_offload", "",
                "there is no such thing here; optimizer.exp_avg_dtype, ddp.data_parallel_sharding_strategy and "
                "model.offload_modules need less memory"},
    // Hugging Face
    ForeignName{"num_hidden_layers", "model.num_layers", ""},
    ForeignName{"intermediate_size", "model.ffn_hidden_size", ""},
    ForeignName{"num_key_value_heads", "model.num_query_groups", ""},
    ForeignName{"head_dim", "model.kv_channels", ""},
    ForeignName{"rms_norm_eps", "model.layernorm_epsilon", ""},
    ForeignName{"rope_theta", "model.rotary_base", ""},
    ForeignName{"sliding_window", "model.window_size", ""},
    ForeignName{"tie_word_embeddings", "model.untie_embeddings_and_output_weights",
                "tie_word_embeddings=true is untie_embeddings_and_output_weights=false"},
    ForeignName{"num_local_experts", "model.moe.num_experts", ""},
    ForeignName{"n_routed_experts", "model.moe.num_experts", ""},
    ForeignName{"num_experts_per_tok", "model.moe.router_topk", ""},
    ForeignName{"first_k_dense_replace", "model.moe.first_k_dense", ""},
    ForeignName{"n_group", "model.moe.router_num_groups", ""},
    ForeignName{"topk_group", "model.moe.router_group_topk", ""},
    ForeignName{"moe_intermediate_size", "model.moe.ffn_hidden_size", ""},
    ForeignName{"n_shared_experts", "model.moe.shared_expert_intermediate_size",
                "it is the width of all of them together"},
    ForeignName{"routed_scaling_factor", "model.moe.router_topk_scaling_factor", ""},
    ForeignName{"norm_topk_prob", "model.moe.router_pre_softmax",
                "norm_topk_prob=true is router_pre_softmax=false, and with sigmoid there is no choice"},
    ForeignName{"router_aux_loss_coef", "model.moe.aux_loss_coeff", ""},
    ForeignName{"aux_loss_alpha", "model.moe.aux_loss_coeff", ""},
    ForeignName{"scoring_func", "model.moe.router_score_function", ""},
};

// Names of number types, in lower case and without "torch.".
struct Spelling {
  std::string_view theirs, ours;
};
constexpr std::array spellings{
    Spelling{"bf16", "bf16"},    Spelling{"bfloat16", "bf16"}, Spelling{"fp32", "fp32"}, Spelling{"f32", "fp32"},
    Spelling{"float32", "fp32"}, Spelling{"float", "fp32"},    Spelling{"fp16", "fp16"}, Spelling{"f16", "fp16"},
    Spelling{"float16", "fp16"}, Spelling{"half", "fp16"},     Spelling{"fp8", "fp8"},   Spelling{"f8", "fp8"},
};

// Our name of a number type; empty when the type is unknown.
std::string_view our_type(std::string_view theirs) {
  constexpr std::string_view torch = "torch.", float8 = "float8";  // a prefix, because there are several: float8_e4m3fn
  std::string name(theirs);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.starts_with(torch)) name.erase(0, torch.size());
  if (name.starts_with(float8)) return "fp8";
  const auto* found = std::ranges::find(spellings, name, &Spelling::theirs);
  return found == spellings.end() ? std::string_view() : found->ours;
}

}  // namespace

const ForeignName* find_foreign_name(std::string_view name) {
  const auto* found = std::ranges::find(names, name, &ForeignName::name);
  return found == names.end() ? nullptr : found;
}

std::string note_on_value(std::string_view key, std::string_view value) {
  if (key == "model.moe.layer_freq")
    return "; a pattern of layers is said by model.moe.first_k_dense and model.moe.mlp_only_layers";
  const bool moment = key == "optimizer.exp_avg_dtype" || key == "optimizer.exp_avg_sq_dtype";
  if (!moment && key != "mixed_precision.precision") return {};
  const std::string_view type = our_type(value);
  if (moment && (type == "fp16" || type == "fp8"))
    return "; fp16 and fp8 would lose small moments, which have no scale of their own here";
  return type.empty() || type == "fp8" ? std::string() : "; write " + std::string(type);
}

}  // namespace tera
