#include "tera/config/moe_layers.h"

#include <numeric>

namespace tera {

std::vector<bool> moe_layers(const MoeConfig& moe, std::int64_t num_layers) {
  std::vector<bool> layers(static_cast<std::size_t>(num_layers));
  for (std::int64_t i = moe.first_k_dense; i < num_layers; ++i)
    layers[static_cast<std::size_t>(i)] = i % moe.layer_freq == 0 && (i + 1) % moe.decoder_sparse_step == 0;
  for (const std::int64_t dense : moe.mlp_only_layers)
    if (dense >= 0 && dense < num_layers) layers[static_cast<std::size_t>(dense)] = false;
  return layers;
}

void set_moe_layers(MoeConfig& moe, const std::vector<bool>& layers) {
  std::int64_t step = 0;
  const std::int64_t count = std::ssize(layers);
  for (std::int64_t i = 0; i < count; ++i)
    if (layers[static_cast<std::size_t>(i)]) step = std::gcd(step, i + 1);
  moe.layer_freq = 1;
  moe.first_k_dense = 0;
  moe.decoder_sparse_step = step == 0 ? 1 : step;
  moe.mlp_only_layers.clear();
  for (std::int64_t i = moe.decoder_sparse_step - 1; i < count; i += moe.decoder_sparse_step)
    if (!layers[static_cast<std::size_t>(i)]) moe.mlp_only_layers.push_back(i);
}

}  // namespace tera
