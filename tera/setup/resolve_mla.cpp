#include "tera/setup/resolve_mla.h"

#include "tera/config/family.h"
#include "tera/config/value.h"

namespace tera {
namespace {

// Reports keys of standard attention that contradict those of model.mla.
void check_other_keys(const ModelConfig& model, Report& report) {
  constexpr std::string_view context = "with multi_latent_attention";
  if (model.arch && !model.arch->may_have_mla)
    report.broken("model.multi_latent_attention", "a {} has none", model.arch->name);
  if (model.position_embedding_type != PositionKind::rope)
    report.broken("model.position_embedding_type", "{} it must be rope", context);
  if (model.kv_channels != 0)
    report.broken("model.kv_channels", "{} sizes of heads are keys of model.mla; leave it 0", context);
  if (model.num_query_groups != 0 && model.num_query_groups != model.num_attention_heads)
    report.broken("model.num_query_groups", "{} every head has keys and values of its own; leave it 0", context);
  if (model.rotary_percent != 1)
    report.broken("model.rotary_percent", "{} it is model.mla.qk_pos_emb_head_dim that turns; leave it 1", context);
  if (model.rope_scaling != RopeScaling{})
    report.broken("model.rope_scaling.type", "{} model.mla.rotary_scaling_factor and the keys behind it say it",
                  context);
  if (model.qk_layernorm) report.broken("model.qk_layernorm", "{} it is the latents that have norms", context);
  if (model.add_bias_linear)
    report.broken("model.add_bias_linear", "{} only add_qkv_bias, add_attention_output_bias and add_mlp_bias are there",
                  context);
}

// Reports keys of model.mla that are set for a model with standard attention.
void check_without(const RunConfig& config, Report& report) {
  const MlaConfig defaults;
  for (const Field& field : MlaConfig::fields())
    if (write_value(field, field.address_in(&defaults)) != write_value(field, field.address_in(&config.model.mla)))
      report.broken(fmt::format("model.mla.{}", field.name), "needs model.multi_latent_attention=true");
}

}  // namespace

std::optional<MlaShape> resolve_mla(const RunConfig& config, Report& report) {
  if (!config.model.multi_latent_attention) {
    check_without(config, report);
    return std::nullopt;
  }
  const MlaConfig& mla = config.model.mla;
  check_other_keys(config.model, report);
  if (mla.qk_pos_emb_head_dim % 2 != 0)
    report.broken("model.mla.qk_pos_emb_head_dim", "RoPE turns pairs of channels; make it even");
  if (mla.v_head_dim > mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    report.broken("model.mla.v_head_dim", "more than qk_head_dim and qk_pos_emb_head_dim together, which are {}",
                  mla.qk_head_dim + mla.qk_pos_emb_head_dim);
  if (mla.rotary_scaling_factor > 1 && mla.beta_fast <= mla.beta_slow)
    report.broken("model.mla.beta_fast", "must be above beta_slow, which is {}", mla.beta_slow);
  return MlaShape{.q_lora = mla.q_lora_rank,
                  .kv_lora = mla.kv_lora_rank,
                  .nope = mla.qk_head_dim,
                  .rotary = mla.qk_pos_emb_head_dim,
                  .values = mla.v_head_dim};
}

}  // namespace tera
