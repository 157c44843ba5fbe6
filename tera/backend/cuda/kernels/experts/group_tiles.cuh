#pragma once
// The tile scheduler of the persistent grouped GEMM: which tile of which group has which number, and which part of it
// each of the two blocks of a cluster has. Plain C++ without CUDA, so that it is tested on any machine.

#include <cstdint>

#ifdef __CUDACC__
#define TERA_HOST_DEVICE __host__ __device__
#else
#define TERA_HOST_DEVICE
#endif

namespace tera::cuda::kernels {

// How the two blocks of a cluster share a tile. A block has one or two parts of 64 rows, and a fixed number of columns.
enum class Pair : std::uint8_t {
  rows,    // 256 rows, the second block has the lower ones
  columns  // 128 rows, the second block has the columns further right
};
constexpr int part_rows = 64;
TERA_HOST_DEVICE constexpr int tile_row_bits(Pair pair) { return pair == Pair::rows ? 8 : 7; }
TERA_HOST_DEVICE constexpr int tile_rows(Pair pair) { return 1 << tile_row_bits(pair); }
TERA_HOST_DEVICE constexpr int tile_columns(Pair pair, int columns) {
  return pair == Pair::rows ? columns : 2 * columns;
}

// Tiles of a group: rows of tiles x column_tiles. Groups of rows of the output have as many rows of tiles as their rows
// fill; where groups are the reduction dimension (weight gradients), all have equally many, empty groups only with
// empty_groups.
struct GroupTileShape {
  int groups = 0;
  Pair pair = Pair::rows;
  int row_tiles = 0;      // 0: by the rows of the group
  int column_tiles = 0;   // columns of tiles of `pair`
  bool cut_ends = false;  // for Pair::rows: the end of a group is cut into tiles of Pair::columns where those are less
  bool empty_groups = false;
};

// Rows of tiles that a group has, and those of Pair::columns at its end. A tile of Pair::rows makes two or four parts
// of 64 rows: where an end fills one or three, low tiles make one less, where it fills two, less is fetched for them.
// For one that fills four more would be.
struct GroupTileRows {
  int full = 0, ends = 0;
};
TERA_HOST_DEVICE inline GroupTileRows group_tile_rows(const GroupTileShape& shape, int rows) {
  if (shape.row_tiles > 0) return {rows > 0 || shape.empty_groups ? shape.row_tiles : 0, 0};
  const int bits = tile_row_bits(shape.pair);
  if (!shape.cut_ends) return {(rows + (1 << bits) - 1) >> bits, 0};
  const int full = (rows + part_rows - 1) >> bits, end = rows - (full << bits);
  return {full, end <= 0 ? 0 : (end + tile_rows(Pair::columns) - 1) >> tile_row_bits(Pair::columns)};
}

TERA_HOST_DEVICE inline int count_tiles(const GroupTileShape& shape, GroupTileRows rows) {
  return rows.full * shape.column_tiles + rows.ends * ((shape.column_tiles + 1) / 2);
}

struct GroupTile {
  int group = 0, begin = 0, end = 0;  // rows begin .. end belong to the group
  int row = 0;                        // the tile's first, counted from the group's
  int column = 0;                     // counted in tiles of its pair
  Pair pair = Pair::rows;
};

// What a block has of a tile: rows first .. first + parts * part_rows, and columns from this one on.
struct BlockTile {
  int first, parts, column;
};
// rows: of the group, as the tile's row counts them; columns: of a block.
TERA_HOST_DEVICE inline BlockTile block_tile(const GroupTile& tile, int rows, int columns, int rank) {
  const bool cut_rows = tile.pair == Pair::rows;
  // Where one part is enough, the second warpgroup idles.
  const int parts = rows - tile.row > tile_rows(tile.pair) / 2 ? 2 : 1;
  return {tile.row + (cut_rows ? rank * parts * part_rows : 0), parts,
          tile.column * tile_columns(tile.pair, columns) + (cut_rows ? 0 : rank * columns)};
}

// Finds tiles by number, for numbers that never decrease. The order is rasterised for L2: neighbouring numbers lie in
// bands of 1024 rows, the last band of a group in up to twice as many, down a column of the band first: what runs at
// the same time then shares rows of one operand and columns of the other. Ends that are cut come after the two columns
// of the last band that they belong to.
class GroupTileScheduler {
 public:
  // offsets: of groups + 1 numbers.
  TERA_HOST_DEVICE GroupTileScheduler(const int* offsets, const GroupTileShape& shape)
      : offsets_(offsets), shape_(shape) {
    end_ = offsets[0];
    if (shape.groups > 0) measure();
  }

  // The tile of this number; false when there are fewer tiles.
  TERA_HOST_DEVICE bool find(int number, GroupTile& tile) {
    while (number - first_ >= tiles_) {
      first_ += tiles_;
      if (++group_ >= shape_.groups) return false;
      measure();
    }
    tile.group = group_;
    tile.begin = begin_;
    tile.end = end_;
    place(number - first_, tile);
    return true;
  }

 private:
  TERA_HOST_DEVICE void measure() {
    begin_ = end_;
    end_ = offsets_[group_ + 1];
    tiles_ = count_tiles(shape_, group_tile_rows(shape_, end_ - begin_));
  }

  // Two columns of a band with their cut ends are a unit; the last unit may have one column.
  TERA_HOST_DEVICE void place(int inside, GroupTile& tile) const {
    const GroupTileRows rows = group_tile_rows(shape_, end_ - begin_);  // recomputed, not kept in registers
    const int bits = tile_row_bits(shape_.pair), band_bits = 10 - bits;
    const int last_band = rows.full >> band_bits > 0 ? (rows.full >> band_bits) - 1 : 0;
    const int band = inside / shape_.column_tiles >> band_bits;
    const bool last = band >= last_band;
    const int top = (last ? last_band : band) << band_bits;
    const int height = last ? rows.full - top : 1 << band_bits;
    const int unit_tiles = 2 * height + (last ? rows.ends : 0), in_band = inside - top * shape_.column_tiles;
    const int unit = in_band / unit_tiles, in_unit = in_band - unit * unit_tiles;
    const int in_columns = 2 * unit + 1 < shape_.column_tiles ? 2 * height : height;
    if (in_unit >= in_columns) {
      tile.pair = Pair::columns;
      tile.row = (rows.full << bits) + ((in_unit - in_columns) << tile_row_bits(Pair::columns));
      tile.column = unit;
      return;
    }
    const int second = in_unit >= height ? 1 : 0;
    tile.pair = shape_.pair;
    tile.row = (top + in_unit - second * height) << bits;
    tile.column = 2 * unit + second;
  }

  const int* offsets_;
  const GroupTileShape& shape_;  // by reference: a kernel's argument needs no registers
  int group_ = 0, begin_ = 0, end_ = 0, tiles_ = 0;
  int first_ = 0;  // number of the group's first tile
};

}  // namespace tera::cuda::kernels
