#include "tera/backend/cpu/kernels/gemm.h"

#include "tera/backend/cpu/kernels/gemm_tile.h"

namespace tera::cpu {
namespace {

template <class F>
void with_storage(GemmStorage storage, F f) {
  switch (storage) {
    case GemmStorage::f32: return f.template operator()<float>();
    case GemmStorage::bf16: return f.template operator()<Bf16>();
    case GemmStorage::f16: return f.template operator()<Fp16>();
  }
}

template <class T>
const T* at(const GemmMatrix& matrix, std::ptrdiff_t row, std::ptrdiff_t column) {
  return static_cast<const T*>(matrix.data) + row * matrix.stride + column;
}

void pack(const GemmPackArgs& args) {
  with_storage(args.b.storage, [&]<class T>() {
    for (std::ptrdiff_t j = 0; j < args.columns; j += tile_columns) {
      float* to = args.packed + j * args.depth;
      const std::ptrdiff_t columns = args.columns - j < tile_columns ? args.columns - j : tile_columns;
      if (args.transposed)
        pack_sliver_transposed(at<T>(args.b, j, 0), args.b.stride, args.depth, columns, to);
      else
        pack_sliver(at<T>(args.b, 0, j), args.b.stride, args.depth, columns, to);
    }
  });
}

// row += from, n elements of any storage.
void add_row(float* row, const GemmMatrix& from, std::ptrdiff_t i, std::ptrdiff_t j, std::ptrdiff_t n) {
  with_storage(from.storage, [&]<class T>() {
    const T* p = at<T>(from, i, j);
    std::ptrdiff_t c = 0;
    for (; c + lanes <= n; c += lanes) store(row + c, load(row + c) + load(p + c));
    if (c < n) store(row + c, load(row + c) + load_tail(p + c, n - c));
  });
}

void write_row(const float* row, const GemmMatrix& to, std::ptrdiff_t i, std::ptrdiff_t j, std::ptrdiff_t n) {
  with_storage(to.storage, [&]<class T>() {
    T* p = const_cast<T*>(at<T>(to, i, j));
    std::ptrdiff_t c = 0;
    for (; c + lanes <= n; c += lanes) store(p + c, load(row + c));
    if (c < n) store_tail(p + c, load(row + c), n - c);
  });
}

// The position of a tile in the output of a call.
struct TilePosition {
  std::ptrdiff_t row, rows, column, columns;
};

// The epilogue of a tile whose sums cannot simply be stored: out = sums + all of these that are given.
struct Epilogue {
  GemmMatrix partial, bias, residual, out;
};

// tile is [position.rows, tile_columns]; it serves as scratch.
void finish(const Epilogue& epilogue, float* tile, const TilePosition& position) {
  for (std::ptrdiff_t r = 0; r < position.rows; ++r, tile += tile_columns) {
    const std::ptrdiff_t i = position.row + r, j = position.column, n = position.columns;
    if (epilogue.partial.data) add_row(tile, epilogue.partial, i, j, n);
    if (epilogue.bias.data) add_row(tile, epilogue.bias, 0, j, n);
    if (epilogue.residual.data) add_row(tile, epilogue.residual, i, j, n);
    write_row(tile, epilogue.out, i, j, n);
  }
}

// Computes one tile at row i, column j. It is not inlined, so that the sums have all registers.
template <Layout layout, int rows, int vectors>
[[gnu::noinline]] void tile_at(const GemmBlockArgs& args, const float* a, std::ptrdiff_t a_stride, std::ptrdiff_t i,
                               std::ptrdiff_t j) {
  if (args.sums) tile_prefetch<rows, vectors>(args.sums + i * args.sums_stride + j, args.sums_stride);
  const auto tile = tile_gemm<layout, rows, vectors>(args.depth, a, a_stride, args.b + j * args.depth, tile_columns);
  const std::ptrdiff_t n = args.columns - j < tile_columns ? args.columns - j : tile_columns;
  const bool to_sums = n == vectors * lanes && !args.bias.data && !args.out.data;  // a full tile, stored from registers
  if (to_sums && !args.residual.data)
    return tile_store(tile, args.sums + i * args.sums_stride + j, args.sums_stride, args.add);
  if (to_sums && args.residual.storage == GemmStorage::f32 && !args.add)
    return tile_store_sum(tile, at<float>(args.residual, i, j), args.residual.stride,
                          args.sums + i * args.sums_stride + j, args.sums_stride);
  alignas(64) float buffer[rows * tile_columns];
  tile_store(tile, buffer, tile_columns, false);
  const GemmMatrix sums{args.sums, args.sums_stride, GemmStorage::f32};
  finish({args.add ? sums : GemmMatrix{}, args.bias, args.residual, args.out.data ? args.out : sums}, buffer,
         {i, rows, j, n});
}

// The left operand of a block: as the caller has it, or packed in slivers, [height, depth] each.
struct Left {
  const float* data;
  std::ptrdiff_t stride;  // 0 for slivers
};

template <Layout layout>
void multiply(const GemmBlockArgs& args, const Left& a) {
  for (std::ptrdiff_t j = 0; j < args.columns; j += tile_columns)
    for_each_height(args.rows, [&]<int height>(std::ptrdiff_t i) {
      const std::ptrdiff_t row_step = a.stride == 0 ? args.depth : layout == Layout::rows ? a.stride : 1;
      const float* from = a.data + i * row_step;
      const std::ptrdiff_t stride = a.stride == 0 ? height : a.stride;
      if (args.columns - j > lanes)
        tile_at<layout, height, tile_vectors>(args, from, stride, i, j);
      else
        tile_at<layout, height, 1>(args, from, stride, i, j);
    });
}

// Rows at multiples of this many floats map to the same few sets of the L1 cache and evict each other.
constexpr std::ptrdiff_t conflicting_stride = 1024;
// By columns, every k is on a line of its own. That is fine in place if the tile uses most of that line.
constexpr bool columns_in_place = tile_rows * 4 >= cache_line * 3;

// Whether a is read in place, without packing: packing costs a pass over it for every block of columns.
template <class T>
bool in_place(const GemmBlockArgs& args) {
  if (sizeof(T) != sizeof(float)) return false;
  return args.transposed ? columns_in_place : args.a.stride % conflicting_stride != 0;
}

void block(const GemmBlockArgs& args) {
  with_storage(args.a.storage, [&]<class T>() {
    const T* a = at<T>(args.a, 0, 0);
    Left left{reinterpret_cast<const float*>(a), args.a.stride};
    if (!in_place<T>(args)) {
      left = {args.scratch, args.transposed ? 0 : gemm_block_depth + cache_line};
      if (args.transposed)
        pack_columns(a, args.a.stride, args.depth, args.rows, args.scratch);
      else
        pack_rows(a, args.a.stride, args.rows, args.depth, args.scratch, left.stride);
    }
    return args.transposed ? multiply<Layout::columns>(args, left) : multiply<Layout::rows>(args, left);
  });
}

// sums[r][c] = row r of a times row c of b, sums [rows, tile_columns].
template <class T, int rows, int columns>
[[gnu::noinline]] void dots(const T* a, std::ptrdiff_t a_stride, const T* b, std::ptrdiff_t b_stride,
                            std::ptrdiff_t depth, float* sums) {
  Tile<rows, columns> tile{};
  const auto step = [&](auto read, std::ptrdiff_t k) {
    Vec right[columns];
#pragma GCC unroll 4
    for (int c = 0; c < columns; ++c) right[c] = read(b + c * b_stride + k);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const Vec left = read(a + r * a_stride + k);
#pragma GCC unroll 4
      for (int c = 0; c < columns; ++c) tile.sum[r][c] += left * right[c];
    }
  };
  std::ptrdiff_t k = 0;
  for (; k + lanes <= depth; k += lanes) step([](const T* p) { return load(p); }, k);
  if (k < depth) step([&](const T* p) { return load_tail(p, depth - k); }, k);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) sums[r * tile_columns + c] = sum_lanes(tile.sum[r][c]);
}

void thin(const GemmThinArgs& args) {
  constexpr int step = 4;  // rows of a, and of b, whose products are summed side by side
  with_storage(args.a.storage, [&]<class T>() {
    for (std::ptrdiff_t j = 0; j < args.columns; j += tile_columns) {
      const std::ptrdiff_t n = args.columns - j < tile_columns ? args.columns - j : tile_columns;
      alignas(64) float tile[gemm_thin_rows * tile_columns];
      const auto all_rows = [&]<int columns>(std::ptrdiff_t c) {
        for_each_height<step>(args.rows, [&]<int height>(std::ptrdiff_t i) {
          dots<T, height, columns>(at<T>(args.a, i, 0), args.a.stride, at<T>(args.b, j + c, 0), args.b.stride,
                                   args.depth, tile + i * tile_columns + c);
        });
      };
      std::ptrdiff_t c = 0;
      for (; c + step <= n; c += step) all_rows.template operator()<step>(c);
      for (; c < n; ++c) all_rows.template operator()<1>(c);
      finish({{}, args.bias, args.residual, args.out}, tile, {0, args.rows, j, n});
    }
  });
}

}  // namespace

template <>
const GemmKernels& gemm_kernels<TERA_ISA>() {
  static constexpr GemmKernels kernels{tile_rows, tile_columns, pack, block, thin};
  return kernels;
}

}  // namespace tera::cpu
