#pragma once
// Tensors as Hopper's copy engine takes them: in boxes of 128 bytes of each of some rows, swizzled in shared memory.

#include <cuda.h>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// A tensor [z, y, x] whose boxes are 128 bytes along x and box_y along y.
struct BoxedTensor {
  std::int64_t x = 0, y = 0, z = 1;
  int box_y = 64;
  std::int64_t stride_y = 0, stride_z = 0;  // elements; 0: dense
};

// Whether the GPU in use is a Hopper whose driver can describe tensors.
bool has_boxes();

// data begins at a multiple of 16 bytes, as do its rows.
cudaError_t describe_boxes(CUtensorMap& map, const void* data, Scalar type, const BoxedTensor& tensor);

}  // namespace tera::cuda::kernels
