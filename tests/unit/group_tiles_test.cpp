// The order of tiles of the grouped GEMM: every element of every group once, for all sizes and any number of persistent
// blocks.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "tera/backend/cuda/kernels/experts/group_tiles.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int block_columns = 2;  // few in a block, so that all elements can be counted

std::vector<int> offsets_of(const std::vector<int>& sizes, int first = 0) {
  std::vector<int> offsets{first};
  for (const int size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

std::vector<GroupTile> walk(const std::vector<int>& offsets, const GroupTileShape& shape, int first, int step) {
  std::vector<GroupTile> tiles;
  GroupTileScheduler walker(offsets.data(), shape);
  GroupTile tile;
  for (int number = first; walker.find(number, tile); number += step) tiles.push_back(tile);
  return tiles;
}

// Shape of an output of n columns. m > 0: all groups have m rows.
struct Output {
  std::vector<int> sizes;
  Pair pair = Pair::rows;
  int n = 0, m = 0;
  bool cut_ends = false, empty_groups = false;

  GroupTileShape shape() const {
    const int rows = tile_rows(pair), columns = tile_columns(pair, block_columns);
    return {.groups = static_cast<int>(sizes.size()),
            .pair = pair,
            .row_tiles = (m + rows - 1) / rows,
            .column_tiles = (n + columns - 1) / columns,
            .cut_ends = cut_ends,
            .empty_groups = empty_groups};
  }
  int rows_of(int group) const {
    const int size = sizes[static_cast<std::size_t>(group)];
    return m == 0 ? size : size > 0 || empty_groups ? m : 0;
  }
};

// How often each element of each group is computed, by the blocks of all walkers.
class Counts {
 public:
  explicit Counts(const Output& output) : output_(output) {
    for (int group = 0; group < static_cast<int>(output.sizes.size()); ++group)
      counts_.emplace_back(static_cast<std::size_t>(output.rows_of(group) * output.n), 0);
  }
  void add(const GroupTile& tile) {
    const int rows = output_.rows_of(tile.group);
    for (const int rank : {0, 1}) {
      const BlockTile block = block_tile(tile, rows, block_columns, rank);
      const int end_row = std::min(block.first + block.parts * kernels::part_rows, rows);
      const int end_column = std::min(block.column + block_columns, output_.n);
      for (int row = block.first; row < end_row; ++row)
        for (int column = block.column; column < end_column; ++column)
          ++counts_[static_cast<std::size_t>(tile.group)][static_cast<std::size_t>(row * output_.n + column)];
    }
  }
  bool each_once() const {
    return std::all_of(counts_.begin(), counts_.end(), [](const std::vector<int>& group) {
      return std::all_of(group.begin(), group.end(), [](int count) { return count == 1; });
    });
  }

 private:
  const Output& output_;
  std::vector<std::vector<int>> counts_;
};

void expect_each_once(const Output& output) {
  const std::vector<int> offsets = offsets_of(output.sizes);
  for (const int walkers : {1, 2, 7, 66, 1000}) {
    Counts counts(output);
    for (int walker = 0; walker < walkers; ++walker)
      for (const GroupTile& tile : walk(offsets, output.shape(), walker, walkers)) {
        EXPECT_EQ(tile.begin, offsets[static_cast<std::size_t>(tile.group)]);
        EXPECT_EQ(tile.end, offsets[static_cast<std::size_t>(tile.group) + 1]);
        EXPECT_TRUE(tile.row < output.rows_of(tile.group)) << "a tile without rows";
        counts.add(tile);
      }
    EXPECT_TRUE(counts.each_once()) << walkers << " walkers, pair " << static_cast<int>(output.pair) << ", n "
                                    << output.n << ", m " << output.m << ", ends cut: " << output.cut_ends;
  }
}

// Both ways of describing groups: by their offsets, and as groups of m rows.
void expect_each_once(const std::vector<int>& sizes, int n, int m) {
  for (const Pair pair : {Pair::rows, Pair::columns}) expect_each_once({sizes, pair, n});
  expect_each_once({.sizes = sizes, .n = n, .cut_ends = true});
  for (const bool empty_groups : {false, true})
    expect_each_once({.sizes = sizes, .n = n, .m = m, .empty_groups = empty_groups});
}

TEST(GroupTiles, SizesAroundATile) {
  for (const int n : {1, 2, 5, 6, 16})
    expect_each_once({0, 1, 63, 64, 65, 127, 128, 129, 0, 0, 191, 192, 193, 255, 256, 257, 5000, 0}, n, 700);
}

TEST(GroupTiles, BandsOfAllHeights) {
  for (int tiles = 1; tiles <= 13; ++tiles)
    for (const int end : {-63, 0, 1, 65, 129}) expect_each_once({tiles * 256 + end}, 9, tiles * 128 - 50);
}

TEST(GroupTiles, OneGroupAndNone) {
  expect_each_once({100000}, 9, 5000);
  expect_each_once({1}, 1, 1);
  expect_each_once({0, 0, 0}, 8, 700);
  expect_each_once({}, 8, 700);
}

TEST(GroupTiles, ManyGroupsAtRandom) {
  std::mt19937 draw(7);
  for (int round = 0; round < 8; ++round) {
    std::vector<int> sizes(1 + draw() % 512);
    for (int& size : sizes) size = draw() % 3 == 0 ? 0 : static_cast<int>(draw() % 700);
    expect_each_once(sizes, 1 + static_cast<int>(draw() % 12), 1 + static_cast<int>(draw() % 300));
  }
}

TEST(GroupTiles, RowsInFrontOfTheFirstGroupBelongToNone) {
  const std::vector<int> offsets = offsets_of({10, 200}, 1000);
  const std::vector<GroupTile> tiles = walk(offsets, {.groups = 2, .pair = Pair::columns, .column_tiles = 1}, 0, 1);
  ASSERT_EQ(tiles.size(), 3u);
  EXPECT_EQ(tiles[0].begin, 1000);
  EXPECT_EQ(tiles[2].begin, 1010);
  EXPECT_EQ(tiles[2].end, 1210);
}

// The number of wgmma parts of 64 rows that blocks compute for this group, in two columns of tiles of two blocks.
int parts_of(int size, bool cut_ends) {
  const Output output{.sizes = {size}, .n = 2 * block_columns, .cut_ends = cut_ends};
  int parts = 0;
  for (const GroupTile& tile : walk(offsets_of(output.sizes), output.shape(), 0, 1))
    parts += block_tile(tile, size, block_columns, 0).parts;
  return parts;
}

// A block computes as many parts of 64 rows as the group needs, and otherwise halves of tiles of 256 rows.
TEST(GroupTiles, EndsThatAreCutCostLess) {
  for (const int size : {1, 64, 65, 128, 129, 192, 193, 256, 257, 1000, 4096, 4097, 4225}) {
    EXPECT_EQ(parts_of(size, true), (size + 63) / 64) << size;
    EXPECT_EQ(parts_of(size, false), (size + 127) / 128 * 2) << size;
  }
}

// Where all of a tile of 256 rows is made anyway, it is not cut: less is fetched for it.
TEST(GroupTiles, EndsOfFourPartsAreWhole) {
  const auto are_cut = [](int size) {
    const std::vector<GroupTile> tiles =
        walk(offsets_of({size}), {.groups = 1, .column_tiles = 2, .cut_ends = true}, 0, 1);
    return std::any_of(tiles.begin(), tiles.end(), [](const GroupTile& tile) { return tile.pair == Pair::columns; });
  };
  for (const int size : {193, 255, 256, 512, 449}) EXPECT_FALSE(are_cut(size)) << size;
  for (const int size : {1, 64, 65, 128, 129, 192, 257, 448}) EXPECT_TRUE(are_cut(size)) << size;
}

// Among the tiles that run at the same time, no group's operand is fetched by more rows and columns of tiles than a
// square needs.
TEST(GroupTiles, NeighboursShareOperands) {
  const GroupTileShape shape{.groups = 1, .pair = Pair::columns, .column_tiles = 56};
  const std::vector<GroupTile> tiles = walk(offsets_of({4096}), shape, 0, 1);
  for (std::size_t begin = 0; begin + 64 <= tiles.size(); begin += 64) {
    std::set<int> rows, columns;
    for (std::size_t i = begin; i < begin + 64; ++i) {
      rows.insert(tiles[i].row);
      columns.insert(tiles[i].column);
    }
    EXPECT_LE(rows.size(), 8u);
    EXPECT_LE(columns.size(), 8u);
  }
}

// The columns of a group's matrix are fetched for four rows of tiles at least: no band is left with less, and an end is
// worked on beside the band that has the same columns.
TEST(GroupTiles, NoBandIsThin) {
  for (const int size : {4096, 4096 + 1, 4096 + 200, 4096 + 256, 4096 + 256 + 130, 4096 + 768 + 64}) {
    const GroupTileShape shape{.groups = 1, .column_tiles = 112, .cut_ends = true};
    std::vector<int> times(112, 0);  // that a column is begun with
    int before = -1;
    for (const GroupTile& tile : walk(offsets_of({size}), shape, 0, 1)) {
      const int column = tile.pair == Pair::rows ? tile.column : 2 * tile.column + 1;
      if (column != before) ++times[static_cast<std::size_t>(column)];
      before = column;
    }
    EXPECT_EQ(*std::max_element(times.begin(), times.end()), 4) << size;
  }
}

}  // namespace
}  // namespace tera::cuda::kernels
