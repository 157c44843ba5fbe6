#pragma once
// TMA descriptors (tensor maps) with the 128-byte swizzle: boxes of 128 bytes of each of some rows.

#include <cuda.h>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// A tensor [z, y, x] whose boxes are 128 bytes along x and box_y along y.
struct TmaTensor {
  std::int64_t x = 0, y = 0, z = 1;
  int box_y = 64;
  std::int64_t stride_y = 0, stride_z = 0;  // elements; 0: dense
};

// Whether the GPU in use is a Hopper whose driver can encode TMA descriptors.
bool has_tma();

// data begins at a multiple of 16 bytes, as do its rows.
cudaError_t encode_tma_descriptor(CUtensorMap& map, const void* data, Scalar type, const TmaTensor& tensor);

}  // namespace tera::cuda::kernels
