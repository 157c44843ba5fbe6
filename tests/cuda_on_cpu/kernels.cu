// Small kernels for the tests of the emulation (block_test.cpp), translated as those of the backend are.

#include "tests/cuda_on_cpu/kernels.h"

namespace tera::test::kernels {
namespace {

// Rotates the numbers of threads by one through shared memory.
__global__ void rotate(int* out) {
  __shared__ int numbers[1024];
  const int i = static_cast<int>(threadIdx.x);
  numbers[i] = i;
  __syncthreads();
  out[blockIdx.x * blockDim.x + i] = numbers[(i + 1) % static_cast<int>(blockDim.x)];
}

__global__ void write_indices(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = static_cast<int>(block * 1000 + thread);
}

__global__ void warp_functions(WarpResults* out) {
  const int i = static_cast<int>(threadIdx.x);
  constexpr unsigned all = 0xffffffffu;
  WarpResults& mine = out[i];
  mine.from_three = __shfl_sync(all, 10 * i, 3);
  mine.from_four_of_eight = __shfl_sync(all, 10 * i, 4, 8);
  mine.exclusive_or = __shfl_xor_sync(all, static_cast<double>(i), 5);
  mine.up = __shfl_up_sync(all, i, 2u);
  mine.ballot = __ballot_sync(all, i % 3 == 0);
  mine.match = __match_any_sync(all, i / 10);
  mine.greatest = __reduce_max_sync(all, static_cast<unsigned>(i * 7 % 32));
  mine.least = __reduce_min_sync(all, static_cast<unsigned>(i * 7 % 32 + 3));
  mine.any = __any_sync(all, i == 31);
  // Two halves of a warp diverge.
  if (i < 16)
    mine.of_half = __shfl_xor_sync(0x0000ffffu, i, 15);
  else
    mine.of_half = __shfl_xor_sync(0xffff0000u, i, 1);
}

__global__ void shuffle_at_two_places(int* out) {
  constexpr unsigned all = 0xffffffffu;
  const int i = static_cast<int>(threadIdx.x);
  if (i < 16)
    out[i] = __shfl_xor_sync(all, i, 1);
  else
    out[i] = __shfl_xor_sync(all, i, 2);
}

__global__ void wait_for_all_lanes() {
  if (threadIdx.x % 2 == 0) __syncwarp();
  __syncthreads();
}

__global__ void wait_at_two_barriers() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}

__global__ void read_unwritten(float* out) {
  __shared__ float never[32];
  out[threadIdx.x] = never[threadIdx.x];
}

template <class T>
__global__ void reverse(T* out, int n) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* const values = reinterpret_cast<T*>(memory);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) values[i] = out[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) out[i] = values[n - 1 - i];
}

__global__ void count_up(int* counter) { atomicAdd(counter, 1); }

}  // namespace

cudaError_t launch_rotate(int* out, int blocks, int threads, cudaStream_t stream) {
  rotate<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(out);
  return cudaGetLastError();
}
cudaError_t launch_write_indices(int* out, dim3 grid, dim3 block, cudaStream_t stream) {
  write_indices<<<grid, block, 0, stream>>>(out);
  return cudaGetLastError();
}
cudaError_t launch_warp_functions(WarpResults* out, cudaStream_t stream) {
  warp_functions<<<1, 32, 0, stream>>>(out);
  return cudaGetLastError();
}
cudaError_t launch_shuffle_at_two_places(int* out, cudaStream_t stream) {
  shuffle_at_two_places<<<1, 32, 0, stream>>>(out);
  return cudaGetLastError();
}
cudaError_t launch_wait_for_all_lanes(cudaStream_t stream) {
  wait_for_all_lanes<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}
cudaError_t launch_wait_at_two_barriers(cudaStream_t stream) {
  wait_at_two_barriers<<<1, 64, 0, stream>>>();
  return cudaGetLastError();
}
cudaError_t launch_read_unwritten(float* out, cudaStream_t stream) {
  read_unwritten<<<1, 32, 0, stream>>>(out);
  return cudaGetLastError();
}
cudaError_t launch_reverse(double* out, int n, std::size_t shared_bytes, bool allow, cudaStream_t stream) {
  const auto kernel = reverse<double>;
  if (allow) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  kernel<<<1, 128, shared_bytes, stream>>>(out, n);
  return cudaGetLastError();
}
cudaError_t launch_count_up(int* counter, int blocks, cudaStream_t stream) {
  count_up<<<static_cast<unsigned>(blocks), 64, 0, stream>>>(counter);
  return cudaGetLastError();
}

}  // namespace tera::test::kernels
