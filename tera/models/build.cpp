#include "tera/models/build.h"

#include "tera/nn/layer.h"
#include "tera/nn/recompute.h"

namespace tera {

Blocks build_blocks(const ModelSpec& spec, ParamStore& params) {
  Blocks blocks;
  auto embedding = std::make_unique<Embedding>(params, spec.embedding);
  Param* tied = spec.tied ? &embedding->table() : nullptr;
  blocks.push_back(std::move(embedding));
  for (const auto& layer : spec.layers) {
    std::unique_ptr<Block> block = std::make_unique<Layer>(std::make_unique<Attention>(params, layer.mixer),
                                                           std::make_unique<Mlp>(params, layer.ffn));
    if (layer.recompute) block = std::make_unique<Recompute>(std::move(block));
    blocks.push_back(std::move(block));
  }
  blocks.push_back(std::make_unique<Head>(params, spec.head, tied));
  return blocks;
}

}  // namespace tera
