#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tera::test::kernels {

struct WarpResults {
  int from_three, from_four_of_eight;
  double exclusive_or;
  int up;
  unsigned ballot, match, greatest, least;
  int any, of_half;
};

cudaError_t launch_rotate(int* out, int blocks, int threads, cudaStream_t stream = nullptr);
cudaError_t launch_write_indices(int* out, dim3 grid, dim3 block, cudaStream_t stream = nullptr);
cudaError_t launch_warp_functions(WarpResults* out, cudaStream_t stream = nullptr);
cudaError_t launch_shuffle_at_two_places(int* out, cudaStream_t stream = nullptr);
cudaError_t launch_wait_for_all_lanes(cudaStream_t stream = nullptr);
cudaError_t launch_wait_at_two_barriers(cudaStream_t stream = nullptr);
cudaError_t launch_read_unwritten(float* out, cudaStream_t stream = nullptr);
cudaError_t launch_reverse(double* out, int n, std::size_t shared_bytes, bool allow, cudaStream_t stream = nullptr);
cudaError_t launch_count_up(int* counter, int blocks, cudaStream_t stream = nullptr);

}  // namespace tera::test::kernels
