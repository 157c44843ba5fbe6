#pragma once
#include <memory>
#include <vector>

#include "tera/models/spec.h"

namespace tera {

// The blocks of a model in order: embedding, layers, head. Parameters are in the store that was given.
using Blocks = std::vector<std::unique_ptr<Block>>;

Blocks build_blocks(const ModelSpec& spec, ParamStore& params);

}  // namespace tera
