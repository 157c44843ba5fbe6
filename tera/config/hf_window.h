#pragma once
// Which layers have a sliding window, in the keys of the model section.

#include <cstdint>
#include <span>

#include "tera/config/model.h"

namespace tera {

// windows: of each layer, 0 for none. A list of kinds is used only where they are not full layers below windowed ones.
void set_window(ModelConfig& model, std::span<const std::int64_t> windows);

}  // namespace tera
