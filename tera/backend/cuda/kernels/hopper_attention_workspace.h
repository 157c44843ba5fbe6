#pragma once
// What hopper_attention_back.cu keeps in memory. Pure C++: any machine can plan for a GPU.

#include <cstdint>

namespace tera::cuda::kernels {

inline constexpr int hopper_key_rows = 128;      // of a tile of keys
inline constexpr int hopper_tile_floats = 8192;  // of a tile of queries' gradients, whatever the head's size

// A call's sizes. rows: of a sequence; head_size: 64 or 128.
struct HopperAttentionSizes {
  std::int64_t sequences = 0, rows = 0, heads = 0, kv_heads = 0, head_size = 0;

  std::int64_t tiles() const { return (rows + hopper_key_rows - 1) / hopper_key_rows; }
  // Pairs of tiles of keys, each with all query heads that share them.
  std::int64_t pairs() const { return (tiles() - tiles() / 2) * kv_heads * sequences; }
  // Where these are too few for a GPU, the query heads of a pair are dealt to several units, which make gradients of
  // its keys each for itself. A function of the call alone, as bits depend on it.
  std::int64_t shares() const {
    constexpr std::int64_t enough_units = 96;
    const std::int64_t group = heads / kv_heads;
    std::int64_t shares = 1;
    while (shares < group && (group % shares != 0 || pairs() * shares < enough_units)) ++shares;
    return shares;
  }
  std::int64_t units() const { return pairs() * shares(); }  // blocks of threads
};

// Where each part begins, in bytes.
struct HopperAttentionSpace {
  std::int64_t lse = 0, delta = 0;  // f32 [sequences][heads][tiles * 128]
  std::int64_t sums = 0;            // of dq, f32, twice for the later half of the keys
  std::int64_t key_sums = 0;        // of several shares: f32 [sequences][kv_heads][shares][tiles][dk, dv][128 * D]
  std::int64_t turns = 0;           // i32 [sequences][heads][2][tiles of queries], then how many units are taken
  std::int64_t turns_count = 0;     // with the latter
  std::int64_t bytes = 0;
};

inline HopperAttentionSpace hopper_attention_space(const HopperAttentionSizes& sizes) {
  const auto round_up = [](std::int64_t value) { return (value + 255) / 256 * 256; };
  const std::int64_t tiles = sizes.tiles(), late = tiles - tiles / 2, shares = sizes.shares();
  const std::int64_t keys_floats = hopper_key_rows * sizes.head_size, per_keys = keys_floats / hopper_tile_floats;
  const std::int64_t all = sizes.sequences * sizes.heads;
  HopperAttentionSpace space;
  space.delta = round_up(all * tiles * hopper_key_rows * 4);
  space.sums = 2 * space.delta;
  space.key_sums = space.sums + all * (tiles + late) * per_keys * hopper_tile_floats * 4;
  const std::int64_t sets = shares > 1 ? sizes.sequences * sizes.kv_heads * shares * tiles : 0;
  space.turns = space.key_sums + sets * 2 * keys_floats * 4;
  space.turns_count = all * 2 * tiles * per_keys + 1;
  space.bytes = round_up(space.turns + space.turns_count * 4);
  return space;
}

}  // namespace tera::cuda::kernels
