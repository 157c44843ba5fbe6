#pragma once
#include <memory>
#include <span>
#include <vector>

#include "tera/models/spec.h"
#include "tera/nn/context_parallel.h"
#include "tera/nn/expert_parallel.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

// The blocks of a model in order: embedding, layers, head, and MTP layers, each with a head. Parameters are in the
// store that was given.
using Blocks = std::vector<std::unique_ptr<Block>>;

// The sublayers of a layer, as one block.
std::unique_ptr<Block> make_layer(const LayerSpec& spec, const BuildContext& context);

Blocks build_blocks(const ModelSpec& spec, ParamStore& params, const TensorParallel& tp = {},
                    const ExpertParallel& experts = {}, const ContextParallel& cp = {});

// Consecutive blocks of a model, as one virtual pipeline stage has them.
struct BlockRange {
  bool embedding = true;
  std::int64_t first_layer = 0, layers = 0;
  bool head = true;  // the head and the MTP layers after it
};

// What one rank holds: a list of blocks per chunk. Blocks are numbered chunk after chunk (ParamStore::begin_block).
std::vector<Blocks> build_chunks(const ModelSpec& spec, std::span<const BlockRange> chunks, ParamStore& params,
                                 const TensorParallel& tp = {}, const ExpertParallel& experts = {},
                                 const ContextParallel& cp = {});

}  // namespace tera
