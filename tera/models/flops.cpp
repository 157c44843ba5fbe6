#include "tera/models/flops.h"

namespace tera {

double model_flops_per_token(const ModelShape& model, std::int64_t seq_length) {
  const auto heads = static_cast<double>(model.heads * model.head_dim),
             kv = static_cast<double>(model.kv_heads * model.head_dim);
  const auto hidden = static_cast<double>(model.hidden), ffn = static_cast<double>(model.ffn);
  const auto layers = static_cast<double>(model.all_layers()), mtp_layers = static_cast<double>(model.mtp_layers);
  const double matrices = is_gated(model.activation) ? 3 : 2;
  double projections = hidden * (heads + 2 * kv) + heads * hidden, scored = 2 * heads;
  if (model.mla) {
    const auto q_lora = static_cast<double>(model.mla->q_lora), kv_lora = static_cast<double>(model.mla->kv_lora),
               rotary = static_cast<double>(model.mla->rotary),
               values = static_cast<double>(model.heads * model.mla->values),
               expanded = static_cast<double>(model.heads * model.mla->nope) + values;
    projections = (q_lora > 0 ? q_lora * (hidden + heads) : hidden * heads) + hidden * (kv_lora + rotary) +
                  kv_lora * expanded + values * hidden;
    scored = heads + values;
  }
  double matmul = layers * projections + (1 + mtp_layers) * hidden * static_cast<double>(model.vocab);
  matmul += mtp_layers * (3 * hidden + 2 * hidden * hidden);
  // Only a token's top-k experts are counted; the router is not.
  for (std::int64_t i = 0; i < model.all_layers(); ++i) {
    const double width = model.has_experts(i)
                             ? static_cast<double>(model.moe->router.topk * model.moe->ffn + model.moe->shared_ffn)
                             : ffn;
    matmul += matrices * hidden * width;
  }
  return 6 * matmul + 3 * layers * static_cast<double>(seq_length) * scored;
}

}  // namespace tera
