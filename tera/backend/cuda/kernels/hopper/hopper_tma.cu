#include "tera/backend/cuda/kernels/hopper/hopper_tma.cuh"

namespace tera::cuda::kernels {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

#if CUDART_VERSION >= 12050
cudaError_t find_in_driver(const char* name, void** function, cudaDriverEntryPointQueryResult* found) {
  return cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, found);
}
#else
cudaError_t find_in_driver(const char* name, void** function, cudaDriverEntryPointQueryResult* found) {
  return cudaGetDriverEntryPoint(name, function, cudaEnableDefault, found);
}
#endif

// cuTensorMapEncodeTiled of the driver, which makes TMA descriptors; null: it has none.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = find_in_driver("cuTensorMapEncodeTiled", &function, &found);
  if (status == cudaSuccess && found == cudaDriverEntryPointSuccess) return reinterpret_cast<Encode>(function);
  cudaGetLastError();
  return nullptr;
}

Encode encode_function() {
  static const Encode function = find_encode();  // one result for every GPU of a process
  return function;
}

}  // namespace

bool has_tma() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0 && encode_function() != nullptr;
}

cudaError_t encode_tma_descriptor(CUtensorMap& map, const void* data, Scalar type, const TmaTensor& tensor) {
  const Encode encode = encode_function();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t bytes = type == Scalar::f32 ? 4 : 2;
  const CUtensorMapDataType types = type == Scalar::f32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                    : type == Scalar::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                           : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const std::int64_t stride_y = tensor.stride_y > 0 ? tensor.stride_y : tensor.x;
  const std::int64_t stride_z = tensor.stride_z > 0 ? tensor.stride_z : stride_y * tensor.y;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(tensor.x), static_cast<cuuint64_t>(tensor.y),
                               static_cast<cuuint64_t>(tensor.z)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(stride_y) * bytes, static_cast<cuuint64_t>(stride_z) * bytes};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(128 / bytes), static_cast<cuuint32_t>(tensor.box_y), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult status =
      encode(&map, types, 3, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace tera::cuda::kernels
