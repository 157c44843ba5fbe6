#pragma once
// Sets the keys of sliding-window attention in the model section.

#include <cstdint>
#include <span>

#include "tera/config/sections/model.h"

namespace tera {

// windows: sliding window of each layer, 0 for full attention. layer_types is used only if max_window_layers cannot
// express them, that is unless full layers come before windowed ones.
void set_window(ModelConfig& model, std::span<const std::int64_t> windows);

}  // namespace tera
