#pragma once
// What hopper_attention_back.cu keeps in memory. Pure C++: any machine can plan for a GPU.

#include <cstdint>

namespace tera::cuda::kernels {

inline constexpr int hopper_key_rows = 128;      // of a tile of keys
inline constexpr int hopper_tile_floats = 8192;  // of a tile of queries' gradients, whatever the head's size

// Blocks of threads, each with two tiles of keys of one head.
inline std::int64_t hopper_attention_units(std::int64_t sequences, std::int64_t rows, std::int64_t kv_heads) {
  const std::int64_t tiles = (rows + hopper_key_rows - 1) / hopper_key_rows;
  return (tiles - tiles / 2) * kv_heads * sequences;
}

// Where each part begins, in bytes.
struct HopperAttentionSpace {
  std::int64_t lse = 0, delta = 0;  // f32 [sequences][heads][tiles * 128]
  std::int64_t sums = 0;            // of dq, f32, twice for the later half of the keys
  std::int64_t turns = 0;           // i32 [sequences][heads][2][tiles of queries], then how many units are taken
  std::int64_t turns_count = 0;     // with the latter
  std::int64_t bytes = 0;
};

// rows: of a sequence; head_size: 64 or 128.
inline HopperAttentionSpace hopper_attention_space(std::int64_t sequences, std::int64_t rows, std::int64_t heads,
                                                   std::int64_t head_size) {
  const auto round_up = [](std::int64_t value) { return (value + 255) / 256 * 256; };
  const std::int64_t tiles = (rows + hopper_key_rows - 1) / hopper_key_rows, late = tiles - tiles / 2;
  const std::int64_t per_keys = hopper_key_rows * head_size / hopper_tile_floats, all = sequences * heads;
  HopperAttentionSpace space;
  space.delta = round_up(all * tiles * hopper_key_rows * 4);
  space.sums = 2 * space.delta;
  space.turns = space.sums + all * (tiles + late) * per_keys * hopper_tile_floats * 4;
  space.turns_count = all * 2 * tiles * per_keys + 1;
  space.bytes = round_up(space.turns + space.turns_count * 4);
  return space;
}

}  // namespace tera::cuda::kernels
