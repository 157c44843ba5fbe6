#include "tera/backend/cuda/kernels/hopper/hopper_grouped_gemm.cuh"

#include <algorithm>
#include <limits>

#include "tera/backend/cuda/kernels/hopper/hopper_grouped_tiles.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_pairs.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_tma.cuh"

namespace tera::cuda::kernels {
namespace {

using grouped::Plan;

cudaError_t encode_b(Plan& plan, const HopperGroupedGemm& args, int columns) {
  switch (args.form) {
    case GroupedForm::transposed:
      return encode_tma_descriptor(plan.b, args.b, args.in_type,
                                   {.x = args.k, .y = args.n, .z = args.groups, .box_y = columns / 2});
    case GroupedForm::plain:
      return encode_tma_descriptor(plan.b, args.b, args.in_type, {.x = args.n, .y = args.k, .z = args.groups});
    default: return encode_tma_descriptor(plan.b, args.b, args.in_type, {.x = args.n, .y = args.rows});
  }
}

cudaError_t encode_descriptors(Plan& plan, const HopperGroupedGemm& args, int columns) {
  const bool weights = args.form == GroupedForm::weights;
  cudaError_t status =
      encode_tma_descriptor(plan.a, args.a, args.in_type, {.x = weights ? args.m : args.k, .y = args.rows});
  if (status == cudaSuccess) status = encode_b(plan, args, columns);
  if (status != cudaSuccess) return status;
  return encode_tma_descriptor(plan.out_map, args.out, args.out_type,
                               {.x = args.n, .y = weights ? args.m : args.rows, .z = weights ? args.groups : 1});
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The columns of a block's tile: wide tiles, unless narrow ones waste a fifth less beyond the edge.
int block_columns(std::int64_t n) { return ceil_div(n, 128) * 128 * 5 < ceil_div(n, 256) * 256 * 4 ? 128 : 256; }

// A few columns of blocks, of an odd number: with Pair::columns half a cluster would often be left without any.
bool few_and_odd(std::int64_t columns) { return columns % 2 != 0 && columns < 16; }

// How tiles cover the output. Rows are cut where groups are high, so that few tiles end early, or all are equally high.
GroupTileShape tile_shape(const HopperGroupedGemm& args, int columns) {
  const bool weights = args.form == GroupedForm::weights, odd = few_and_odd(ceil_div(args.n, columns));
  const Pair pair = weights || args.rows / args.groups >= 2048 || odd ? Pair::rows : Pair::columns;
  return {.groups = static_cast<int>(args.groups),
          .pair = pair,
          .row_tiles = weights ? static_cast<int>(ceil_div(args.m, tile_rows(pair))) : 0,
          .column_tiles = static_cast<int>(ceil_div(args.n, tile_columns(pair, columns))),
          .cut_ends = pair == Pair::rows && !weights && !odd,
          .empty_groups = weights && !args.accumulate};
}

// The number of rows of tiles is at most this, whatever the offsets are.
std::int64_t max_row_tiles(const HopperGroupedGemm& args, Pair pair) {
  const std::int64_t rows = tile_rows(pair);
  return args.form == GroupedForm::weights ? args.groups * ceil_div(args.m, rows)
                                           : args.rows / rows + std::min(args.groups, args.rows);
}

bool supports(const HopperGroupedGemm& args) {
  constexpr std::int64_t max_extent = std::numeric_limits<int>::max() - 1024;
  const bool weights = args.form == GroupedForm::weights;
  const std::int64_t other = weights ? args.m : args.k;
  if (args.in_type == Scalar::f32 || args.offsets == nullptr) return false;
  if (args.out_type != Scalar::f32 && (weights || args.out_type != args.in_type)) return false;
  if (args.groups < 1 || args.groups > grouped::max_groups || args.rows < 1 || args.n < 8 || other < 8) return false;
  if (args.n % 8 != 0 || other % 8 != 0 || args.rows > max_extent || args.n > max_extent || other > max_extent)
    return false;
  if (max_row_tiles(args, Pair::columns) * ceil_div(args.n, 128) > max_extent) return false;
  return aligned16<float>(args.a) && aligned16<float>(args.b) && aligned16<float>(args.out);
}

template <class T, GroupedForm form, int columns>
cudaError_t launch_tiles(const Plan& plan, std::int64_t tiles, cudaStream_t stream) {
  constexpr int bytes = grouped::Layout<columns>::bytes + static_cast<int>(grouped::stage_alignment);
  return launch_cluster_pairs(grouped::grouped_gemm_kernel<T, form, columns>, plan, grouped::threads, bytes, tiles,
                              stream);
}

template <class T, int columns>
cudaError_t launch_form(GroupedForm form, const Plan& plan, std::int64_t tiles, cudaStream_t stream) {
  switch (form) {
    case GroupedForm::transposed: return launch_tiles<T, GroupedForm::transposed, columns>(plan, tiles, stream);
    case GroupedForm::plain: return launch_tiles<T, GroupedForm::plain, columns>(plan, tiles, stream);
    default: return launch_tiles<T, GroupedForm::weights, columns>(plan, tiles, stream);
  }
}

}  // namespace

bool hopper_grouped_gemm_supports(const HopperGroupedGemm& args) { return supports(args) && has_tma(); }

cudaError_t launch_hopper_grouped_gemm(const HopperGroupedGemm& args, cudaStream_t stream) {
  if (!supports(args)) return cudaErrorInvalidValue;
  const int columns = block_columns(args.n);
  Plan plan{};
  plan.out = args.out;
  plan.offsets = args.offsets;
  plan.m = static_cast<int>(args.m);
  plan.n = static_cast<int>(args.n);
  plan.k_tiles = static_cast<int>(ceil_div(args.k, grouped::tile_k));
  plan.tiles = tile_shape(args, columns);
  plan.out_f32 = args.out_type == Scalar::f32;
  plan.accumulate = args.accumulate;
  const cudaError_t status = encode_descriptors(plan, args, columns);
  if (status != cudaSuccess) return status;
  const std::int64_t tiles = max_row_tiles(args, plan.tiles.pair) * plan.tiles.column_tiles;
  const auto launch = [&]<class T>(T) {
    return columns == 256 ? launch_form<T, 256>(args.form, plan, tiles, stream)
                          : launch_form<T, 128>(args.form, plan, tiles, stream);
  };
  return args.in_type == Scalar::bf16 ? launch(__nv_bfloat16{}) : launch(__half{});
}

}  // namespace tera::cuda::kernels
