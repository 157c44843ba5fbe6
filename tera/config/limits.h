#pragma once
// Upper limits of values in a config that several sections share: far above any model, and low enough that products of
// two sizes fit in 64 bits.

namespace tera::limits {

constexpr double max_layers = 100'000;
constexpr double max_width = 1 << 24;
constexpr double max_index = (1LL << 31) - 1;  // token ids, positions and rows of a batch are 32-bit

}  // namespace tera::limits
