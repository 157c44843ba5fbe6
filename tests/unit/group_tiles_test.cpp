// The order of tiles of grouped products: every tile of every group once, whatever the sizes, for any number of
// walkers.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "tera/backend/cuda/kernels/group_tiles.cuh"

namespace tera::cuda::kernels {
namespace {

using Place = std::tuple<int, int, int>;  // group, row, column

std::vector<int> offsets_of(const std::vector<int>& sizes, int first = 0) {
  std::vector<int> offsets{first};
  for (const int size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

// By plain loops.
std::set<Place> all_tiles(const std::vector<int>& sizes, const GroupTileShape& shape) {
  std::set<Place> tiles;
  for (int group = 0; group < shape.groups; ++group) {
    const int size = sizes[static_cast<std::size_t>(group)];
    int rows = 0;
    while (rows * shape.tile_rows < size) ++rows;
    if (shape.row_tiles > 0) rows = size > 0 || shape.empty_groups ? shape.row_tiles : 0;
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < shape.column_tiles; ++column) tiles.insert({group, row, column});
  }
  return tiles;
}

std::vector<GroupTile> walk(const std::vector<int>& offsets, const GroupTileShape& shape, int first, int step) {
  std::vector<GroupTile> tiles;
  GroupTileWalk walker(offsets.data(), shape);
  GroupTile tile;
  for (int number = first; walker.find(number, tile); number += step) tiles.push_back(tile);
  return tiles;
}

void expect_each_once(const std::vector<int>& sizes, const GroupTileShape& shape) {
  const std::vector<int> offsets = offsets_of(sizes);
  const std::set<Place> expected = all_tiles(sizes, shape);
  for (const int walkers : {1, 2, 7, 66, 1000}) {
    std::set<Place> seen;
    for (int walker = 0; walker < walkers; ++walker)
      for (const GroupTile& tile : walk(offsets, shape, walker, walkers)) {
        EXPECT_TRUE(seen.insert({tile.group, tile.row, tile.column}).second) << "twice";
        EXPECT_EQ(tile.begin, offsets[static_cast<std::size_t>(tile.group)]);
        EXPECT_EQ(tile.end, offsets[static_cast<std::size_t>(tile.group) + 1]);
      }
    EXPECT_EQ(seen, expected) << walkers << " walkers";
  }
}

void expect_each_once(const std::vector<int>& sizes, int tile_rows, int row_tiles, int column_tiles) {
  GroupTileShape shape{static_cast<int>(sizes.size()), tile_rows, row_tiles, column_tiles};
  for (const bool empty_groups : {false, true}) {
    shape.empty_groups = empty_groups;
    expect_each_once(sizes, shape);
  }
}

TEST(GroupTiles, SizesAroundATile) {
  for (const int columns : {1, 3, 8}) {
    expect_each_once({0, 1, 127, 128, 129, 0, 0, 255, 256, 257, 5000, 0}, 128, 0, columns);
    expect_each_once({0, 1, 63, 64, 65, 0, 640}, 64, 12, columns);
  }
}

TEST(GroupTiles, OneGroupAndNone) {
  expect_each_once({100000}, 128, 0, 5);
  expect_each_once({1}, 128, 0, 1);
  expect_each_once({0, 0, 0}, 128, 0, 4);
  expect_each_once({0, 0, 0}, 64, 9, 4);
  expect_each_once({}, 128, 0, 4);
}

TEST(GroupTiles, ManyGroupsAtRandom) {
  std::mt19937 draw(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<int> sizes(1 + draw() % 512);
    for (int& size : sizes) size = draw() % 3 == 0 ? 0 : static_cast<int>(draw() % 700);
    expect_each_once(sizes, 128, round % 2 == 0 ? 0 : 3, 1 + static_cast<int>(draw() % 6));
  }
}

TEST(GroupTiles, RowsInFrontOfTheFirstGroupBelongToNone) {
  const std::vector<int> offsets = offsets_of({10, 200}, 1000);
  const std::vector<GroupTile> tiles = walk(offsets, {2, 128, 0, 1}, 0, 1);
  ASSERT_EQ(tiles.size(), 3u);
  EXPECT_EQ(tiles[0].begin, 1000);
  EXPECT_EQ(tiles[2].begin, 1010);
  EXPECT_EQ(tiles[2].end, 1210);
}

// What runs at the same time: no group's operand is fetched by more rows and columns of tiles than a square needs.
TEST(GroupTiles, NeighboursShareOperands) {
  const std::vector<GroupTile> tiles = walk(offsets_of({4096}), {1, 128, 0, 56}, 0, 1);
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

}  // namespace
}  // namespace tera::cuda::kernels
