#include "tera/backend/cuda/kernels/hopper_gated_gemm.cuh"

#include <limits>

#include "tera/backend/cuda/kernels/hopper_boxes.cuh"
#include "tera/backend/cuda/kernels/hopper_gated_tiles.cuh"
#include "tera/backend/cuda/kernels/hopper_pairs.cuh"

namespace tera::cuda::kernels {
namespace {

using gated::Plan;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class Args>
bool suits(const Args& args) {
  constexpr std::int64_t most = std::numeric_limits<int>::max() - 1024;
  if (args.type == Scalar::f32 || args.rows < 1 || args.width < 8 || args.k < 8) return false;
  if (args.width % 8 != 0 || args.k % 8 != 0 || args.rows > most || args.width > most / 2 || args.k > most)
    return false;
  if (ceil_div(args.rows, gated::tile_rows) * ceil_div(args.width, gated::tile_columns / 2) > most) return false;
  return aligned16<float>(args.a) && aligned16<float>(args.b) && aligned16<float>(args.x);
}

template <class Args>
cudaError_t make_plan(Plan& plan, const Args& args, int columns) {
  plan.rows = static_cast<int>(args.rows);
  plan.width = static_cast<int>(args.width);
  plan.depth_blocks = static_cast<int>(ceil_div(args.k, gated::depth));
  plan.row_tiles = static_cast<int>(ceil_div(args.rows, gated::tile_rows));
  plan.column_tiles = static_cast<int>(ceil_div(args.width, columns));
  return describe_boxes(plan.a, args.a, args.type, {.x = args.k, .y = args.rows, .box_y = gated::block_rows});
}

// [R,2F] as [2,R,F]: gates and ups, so that neither's boxes reach into the other. From one to the other is less far
// than from row to row, which the copy engine does not mind.
template <class Args>
cudaError_t describe_halves(CUtensorMap& map, const void* data, const Args& args, int box_rows) {
  return describe_boxes(
      map, data, args.type,
      {.x = args.width, .y = args.rows, .z = 2, .box_y = box_rows, .stride_y = 2 * args.width, .stride_z = args.width});
}

template <class T, bool backward>
cudaError_t launch(const Plan& plan, cudaStream_t stream) {
  constexpr int bytes = gated::Memory::bytes + static_cast<int>(gated::stage_alignment);
  const std::int64_t tiles = std::int64_t{plan.row_tiles} * plan.column_tiles;
  return launch_pairs(gated::multiply_gated<T, backward>, plan, gated::threads, bytes, tiles, stream);
}

}  // namespace

bool hopper_gated_gemm_takes(const HopperGatedGemm& args) {
  return suits(args) && aligned16<float>(args.act) && has_boxes();
}
bool hopper_gated_gemm_takes(const HopperGatedGemmBack& args) {
  return suits(args) && aligned16<float>(args.dx) && has_boxes();
}

cudaError_t launch_hopper_gated_gemm(const HopperGatedGemm& args, cudaStream_t stream) {
  if (!suits(args)) return cudaErrorInvalidValue;
  Plan plan{};
  cudaError_t status = make_plan(plan, args, gated::tile_columns / 2);
  // Of gates and ups, which lie one behind the other here.
  if (status == cudaSuccess)
    status = describe_boxes(plan.b, args.b, args.type, {.x = args.k, .y = args.width, .z = 2, .box_y = 128});
  if (status == cudaSuccess) status = describe_halves(plan.x_boxes, args.x, args, gated::part_rows);
  if (status == cudaSuccess)
    status =
        describe_boxes(plan.result, args.act, args.type, {.x = args.width, .y = args.rows, .box_y = gated::unit_rows});
  if (status != cudaSuccess) return status;
  return args.type == Scalar::bf16 ? launch<__nv_bfloat16, false>(plan, stream) : launch<__half, false>(plan, stream);
}

cudaError_t launch_hopper_gated_gemm(const HopperGatedGemmBack& args, cudaStream_t stream) {
  if (!suits(args)) return cudaErrorInvalidValue;
  Plan plan{};
  plan.x = args.x;
  cudaError_t status = make_plan(plan, args, gated::tile_columns);
  if (status == cudaSuccess) status = describe_boxes(plan.b, args.b, args.type, {.x = args.width, .y = args.k});
  if (status == cudaSuccess) status = describe_halves(plan.result, args.dx, args, gated::unit_rows);
  if (status != cudaSuccess) return status;
  return args.type == Scalar::bf16 ? launch<__nv_bfloat16, true>(plan, stream) : launch<__half, true>(plan, stream);
}

}  // namespace tera::cuda::kernels
