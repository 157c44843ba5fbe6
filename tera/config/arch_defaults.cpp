#include "tera/config/arch_defaults.h"

namespace tera {
namespace {

// LayerNorm, learned positions, biases everywhere and a tied head are what ModelConfig starts from.
void apply_gpt(ModelConfig& model) {
  model.activation = Activation::gelu_tanh;
  model.hidden_dropout = 0.1;
  model.attention_dropout = 0.1;
}

void apply_llama(ModelConfig& model) {
  model.normalization = NormKind::rms_norm;
  model.activation = Activation::swiglu;
  model.position_embedding_type = PositionKind::rope;
  model.add_bias_linear = false;
  model.untie_embeddings_and_output_weights = true;
}

void apply_mistral(ModelConfig& model) {
  apply_llama(model);
  model.window_size = 4096;
}

void apply_mixtral(ModelConfig& model) {
  apply_llama(model);
  model.rotary_base = 1'000'000;
  model.moe.num_experts = 8;
  model.moe.router_topk = 2;
}

void apply_qwen2(ModelConfig& model) {
  apply_llama(model);
  model.layernorm_epsilon = 1e-6;
  model.add_qkv_bias = true;
}

void apply_qwen3(ModelConfig& model) {
  apply_llama(model);
  model.layernorm_epsilon = 1e-6;
  model.qk_layernorm = true;
  model.kv_channels = 128;
}

void apply_qwen3_moe(ModelConfig& model) {
  apply_qwen3(model);
  model.moe.num_experts = 128;
  model.moe.router_topk = 8;
}

// These are the routing hyperparameters of the published models; a smaller model has to override them.
void apply_deepseek(ModelConfig& model) {
  apply_llama(model);
  model.layernorm_epsilon = 1e-6;
  model.rotary_interleaved = true;
  model.multi_latent_attention = true;
  model.moe.router_load_balancing_type = {std::string(name_of(LoadBalancing::seq_aux_loss))};
}

void apply_deepseek_v2(ModelConfig& model) {
  apply_deepseek(model);
  model.moe.num_experts = 64;
  model.moe.first_k_dense = 1;
  model.moe.router_topk = 6;
  model.moe.router_pre_softmax = true;
  model.moe.aux_loss_coeff = {1e-3};
}

void apply_deepseek_v3(ModelConfig& model) {
  apply_deepseek(model);
  model.mla.q_lora_rank = 1536;
  model.moe.num_experts = 256;
  model.moe.first_k_dense = 3;
  model.moe.router_topk = 8;
  model.moe.router_score_function = ScoreFunction::sigmoid;
  model.moe.router_topk_scaling_factor = 2.5;
  model.moe.router_num_groups = 8;
  model.moe.router_group_topk = 4;
  model.moe.router_enable_expert_bias = true;
  model.moe.aux_loss_coeff = {1e-4};
}

}  // namespace

void apply_arch_defaults(Arch arch, ModelConfig& model) {
  switch (arch) {
    case Arch::deepseek_v2: return apply_deepseek_v2(model);
    case Arch::deepseek_v3: return apply_deepseek_v3(model);
    case Arch::gpt: return apply_gpt(model);
    case Arch::llama: return apply_llama(model);
    case Arch::mistral: return apply_mistral(model);
    case Arch::mixtral: return apply_mixtral(model);
    case Arch::qwen2: return apply_qwen2(model);
    case Arch::qwen3: return apply_qwen3(model);
    case Arch::qwen3_moe: return apply_qwen3_moe(model);
  }
}

}  // namespace tera
