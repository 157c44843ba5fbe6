#pragma once
// The workspace of flash attention's backward on Hopper (hopper_attention_back.cu). Pure C++: any machine can plan for
// a GPU.

#include <cstdint>

namespace tera::cuda::kernels {

inline constexpr int hopper_key_rows = 128;      // rows of a tile of keys
inline constexpr int hopper_tile_floats = 8192;  // elements of dq for a tile of queries, whatever the head's size

// A call's sizes. rows: of a sequence; head_size: 64 or 128.
struct HopperAttentionSizes {
  std::int64_t sequences = 0, rows = 0, heads = 0, kv_heads = 0, head_size = 0;

  std::int64_t tiles() const { return (rows + hopper_key_rows - 1) / hopper_key_rows; }
  // Pairs of tiles of keys, each with all query heads that share them.
  std::int64_t pairs() const { return (tiles() - tiles() / 2) * kv_heads * sequences; }
  // Where pairs are too few for a GPU, the query heads of a pair are split over several units, each of which makes
  // partial gradients of its keys. A function of the call alone, as bits depend on it.
  std::int64_t head_splits() const {
    constexpr std::int64_t enough_units = 96;
    const std::int64_t group = heads / kv_heads;
    std::int64_t head_splits = 1;
    while (head_splits < group && (group % head_splits != 0 || pairs() * head_splits < enough_units)) ++head_splits;
    return head_splits;
  }
  std::int64_t units() const { return pairs() * head_splits(); }  // blocks of threads
};

// Where each part begins, in bytes.
struct HopperAttentionSpace {
  std::int64_t lse = 0, delta = 0;  // f32 [sequences][heads][tiles * 128]
  std::int64_t sums = 0;            // f32; sums of dq, twice for the later half of the keys
  std::int64_t key_sums =
      0;  // partial dk, dv with several splits: f32 [sequences][kv_heads][head_splits][tiles][dk, dv][128 * D]
  std::int64_t semaphores = 0;       // i32 [sequences][heads][2][tiles of queries], then the counter of units taken
  std::int64_t semaphore_count = 0;  // the counter of units included
  std::int64_t bytes = 0;
};

inline HopperAttentionSpace hopper_attention_space(const HopperAttentionSizes& sizes) {
  const auto round_up = [](std::int64_t value) { return (value + 255) / 256 * 256; };
  const std::int64_t tiles = sizes.tiles(), late = tiles - tiles / 2, head_splits = sizes.head_splits();
  const std::int64_t keys_floats = hopper_key_rows * sizes.head_size, per_keys = keys_floats / hopper_tile_floats;
  const std::int64_t all = sizes.sequences * sizes.heads;
  HopperAttentionSpace space;
  space.delta = round_up(all * tiles * hopper_key_rows * 4);
  space.sums = 2 * space.delta;
  space.key_sums = space.sums + all * (tiles + late) * per_keys * hopper_tile_floats * 4;
  const std::int64_t sets = head_splits > 1 ? sizes.sequences * sizes.kv_heads * head_splits * tiles : 0;
  space.semaphores = space.key_sums + sets * 2 * keys_floats * 4;
  space.semaphore_count = all * 2 * tiles * per_keys + 1;
  space.bytes = round_up(space.semaphores + space.semaphore_count * 4);
  return space;
}

}  // namespace tera::cuda::kernels
