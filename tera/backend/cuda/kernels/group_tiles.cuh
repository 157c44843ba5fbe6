#pragma once
// Which tile of which group has which number: the order in which a grouped product is worked on. Plain C++ without
// CUDA, so that it is tested on any machine.

#include <cstdint>

#ifdef __CUDACC__
#define TERA_HOST_DEVICE __host__ __device__
#else
#define TERA_HOST_DEVICE
#endif

namespace tera::cuda::kernels {

// Tiles of a group: row_tiles x column_tiles. Groups of rows of the output have as many rows of tiles as their rows
// fill; where groups are what is summed over, all have the same, those without rows only if they are asked for.
struct GroupTileShape {
  int groups = 0;
  int tile_rows = 1;
  int row_tiles = 0;  // 0: by the rows of the group
  int column_tiles = 0;
  int band = 8;  // rows of tiles that are worked on together
  bool empty_groups = false;
};

struct GroupTile {
  int group = 0, begin = 0, end = 0;  // rows begin .. end belong to the group
  int row = 0, column = 0;            // of the tile, counted in tiles
};

// Finds tiles by number, for numbers that never fall. Neighbouring numbers lie in bands of some rows of tiles, down a
// column of the band first: what runs at the same time then shares rows of one operand and columns of the other.
class GroupTileWalk {
 public:
  // offsets: of groups + 1 numbers.
  TERA_HOST_DEVICE GroupTileWalk(const int* offsets, const GroupTileShape& shape) : offsets_(offsets), shape_(shape) {
    end_ = offsets[0];
    measure();
  }

  // The tile of this number; false when there are not so many.
  TERA_HOST_DEVICE bool find(int number, GroupTile& tile) {
    while (number - first_ >= row_tiles_ * shape_.column_tiles) {
      first_ += row_tiles_ * shape_.column_tiles;
      if (++group_ >= shape_.groups) return false;
      measure();
    }
    const int inside = number - first_, band_tiles = shape_.band * shape_.column_tiles;
    const int top = inside / band_tiles * shape_.band, in_band = inside % band_tiles;
    const int height = row_tiles_ - top < shape_.band ? row_tiles_ - top : shape_.band;
    tile.group = group_;
    tile.begin = begin_;
    tile.end = end_;
    tile.column = in_band / height;
    tile.row = top + in_band % height;
    return true;
  }

 private:
  TERA_HOST_DEVICE void measure() {
    begin_ = end_;
    end_ = group_ < shape_.groups ? offsets_[group_ + 1] : begin_;
    const int rows = end_ - begin_;
    const bool counts = rows > 0 || shape_.empty_groups;
    row_tiles_ =
        shape_.row_tiles == 0 ? (rows + shape_.tile_rows - 1) / shape_.tile_rows : (counts ? shape_.row_tiles : 0);
  }

  const int* offsets_;
  GroupTileShape shape_;
  int group_ = 0, begin_ = 0, end_ = 0, row_tiles_ = 0;
  int first_ = 0;  // number of the group's first tile
};

}  // namespace tera::cuda::kernels
