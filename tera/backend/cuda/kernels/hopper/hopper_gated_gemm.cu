#include "tera/backend/cuda/kernels/hopper/hopper_gated_gemm.cuh"

#include <limits>

#include "tera/backend/cuda/kernels/hopper/hopper_gated_tiles.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_pairs.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_tma.cuh"

namespace tera::cuda::kernels {
namespace {

using gated::Plan;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class Args>
bool supports(const Args& args) {
  constexpr std::int64_t max_extent = std::numeric_limits<int>::max() - 1024;
  if (args.type == Scalar::f32 || args.rows < 1 || args.width < 8 || args.k < 8) return false;
  if (args.width % 8 != 0 || args.k % 8 != 0 || args.rows > max_extent || args.width > max_extent / 2 ||
      args.k > max_extent)
    return false;
  if (ceil_div(args.rows, gated::tile_rows) * ceil_div(args.width, gated::tile_columns / 2) > max_extent) return false;
  return aligned16<float>(args.a) && aligned16<float>(args.b) && aligned16<float>(args.x);
}

template <class Args>
cudaError_t make_plan(Plan& plan, const Args& args, int columns) {
  plan.rows = static_cast<int>(args.rows);
  plan.width = static_cast<int>(args.width);
  plan.k_tiles = static_cast<int>(ceil_div(args.k, gated::tile_k));
  plan.row_tiles = static_cast<int>(ceil_div(args.rows, gated::tile_rows));
  plan.column_tiles = static_cast<int>(ceil_div(args.width, columns));
  return encode_tma_descriptor(plan.a, args.a, args.type, {.x = args.k, .y = args.rows, .box_y = gated::block_rows});
}

// [R,2F] as [2,R,F]: gates and ups, so that neither's boxes reach into the other. The outer stride is less than that of
// rows, which TMA allows.
template <class Args>
cudaError_t encode_halves(CUtensorMap& map, const void* data, const Args& args, int box_rows) {
  return encode_tma_descriptor(
      map, data, args.type,
      {.x = args.width, .y = args.rows, .z = 2, .box_y = box_rows, .stride_y = 2 * args.width, .stride_z = args.width});
}

template <class T, bool backward>
cudaError_t launch(const Plan& plan, cudaStream_t stream) {
  constexpr int bytes = gated::Memory::bytes + static_cast<int>(gated::stage_alignment);
  const std::int64_t tiles = std::int64_t{plan.row_tiles} * plan.column_tiles;
  return launch_cluster_pairs(gated::gated_gemm_kernel<T, backward>, plan, gated::threads, bytes, tiles, stream);
}

}  // namespace

bool hopper_gated_gemm_supports(const HopperGatedGemm& args) {
  return supports(args) && aligned16<float>(args.act) && has_tma();
}
bool hopper_gated_gemm_supports(const HopperGatedGemmBack& args) {
  return supports(args) && aligned16<float>(args.dx) && has_tma();
}

cudaError_t launch_hopper_gated_gemm(const HopperGatedGemm& args, cudaStream_t stream) {
  if (!supports(args)) return cudaErrorInvalidValue;
  Plan plan{};
  cudaError_t status = make_plan(plan, args, gated::tile_columns / 2);
  // The rows of gates and of ups, which follow each other in b.
  if (status == cudaSuccess)
    status = encode_tma_descriptor(plan.b, args.b, args.type, {.x = args.k, .y = args.width, .z = 2, .box_y = 128});
  if (status == cudaSuccess) status = encode_halves(plan.x_map, args.x, args, gated::part_rows);
  if (status == cudaSuccess)
    status = encode_tma_descriptor(plan.result, args.act, args.type,
                                   {.x = args.width, .y = args.rows, .box_y = gated::unit_rows});
  if (status != cudaSuccess) return status;
  return args.type == Scalar::bf16 ? launch<__nv_bfloat16, false>(plan, stream) : launch<__half, false>(plan, stream);
}

cudaError_t launch_hopper_gated_gemm(const HopperGatedGemmBack& args, cudaStream_t stream) {
  if (!supports(args)) return cudaErrorInvalidValue;
  Plan plan{};
  plan.x = args.x;
  cudaError_t status = make_plan(plan, args, gated::tile_columns);
  if (status == cudaSuccess) status = encode_tma_descriptor(plan.b, args.b, args.type, {.x = args.width, .y = args.k});
  if (status == cudaSuccess) status = encode_halves(plan.result, args.dx, args, gated::unit_rows);
  if (status != cudaSuccess) return status;
  return args.type == Scalar::bf16 ? launch<__nv_bfloat16, true>(plan, stream) : launch<__half, true>(plan, stream);
}

}  // namespace tera::cuda::kernels
