// A stand-in for the functions of cuBLASLt that the backend calls (tera/backend/cuda/libraries/cublaslt_api.h). What it
// offers as two kernels is one GEMM of loops; both claim workspace and overwrite it, as kernels of the library may.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tools/cuda_on_cpu/product.h"
#include "tools/cuda_on_cpu/stop.h"
#include "tools/cuda_on_cpu/stream.h"

namespace cuda_on_cpu {
namespace {

constexpr int kernels_offered = 2;
constexpr std::size_t workspace_wanted = std::size_t{64} << 10;

struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
};

struct Preference {
  std::size_t max_workspace = 0;
  std::array<std::uint32_t, 4> alignments{256, 256, 256, 256};  // bytes, for A, B, C and D
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

// The contents of a cublasLtMatmulAlgo_t.
struct Kernel {
  std::uint64_t mark, workspace;
  std::array<std::uint32_t, 4> alignments;
};
constexpr std::uint64_t kernel_mark = 0x6b65726e656c;
static_assert(sizeof(Kernel) <= sizeof(cublasLtMatmulAlgo_t));

// The handles point to structures that CUDA's header leaves open.
const Description& described(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<const Description*>(handle); }
const Matrix& matrix_of(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<const Matrix*>(handle); }

template <class Value>
cublasStatus_t set(Value& value, const void* from, std::size_t bytes) {
  if (!from || bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class Object, class Handle>
cublasStatus_t create(Handle* handle, Object object) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = reinterpret_cast<Handle>(new Object(object));
  return CUBLAS_STATUS_SUCCESS;
}

template <class Object, class Handle>
cublasStatus_t destroy(Handle handle) {
  delete reinterpret_cast<Object*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(const Description& description, const Gemm& gemm) {
  const bool shapes_match = rows_of_b(gemm) == columns_of_a(gemm) && gemm.out.rows == rows_of_a(gemm) &&
                            gemm.out.columns == columns_of_b(gemm) && gemm.added.rows == gemm.out.rows &&
                            gemm.added.columns == gemm.out.columns;
  if (!shapes_match) return CUBLAS_STATUS_INVALID_VALUE;
  const cudaDataType_t in = gemm.a.type, out = gemm.out.type;
  const bool has_float_compute =
      (description.compute == CUBLAS_COMPUTE_32F || description.compute == CUBLAS_COMPUTE_32F_FAST_TF32) &&
      description.scale == CUDA_R_32F;
  const bool has_types = bytes_of(in) != 0 && gemm.b.type == in && gemm.added.type == out &&
                         (out == in || out == CUDA_R_32F) &&
                         (in == CUDA_R_32F || description.compute == CUBLAS_COMPUTE_32F);
  const bool biased = description.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!has_float_compute || !has_types) return CUBLAS_STATUS_NOT_SUPPORTED;
  return biased && gemm.bias_type != out && gemm.bias_type != in ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

Gemm gemm_of(const Description& description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
             cublasLtMatrixLayout_t added, cublasLtMatrixLayout_t out) {
  return {.a = matrix_of(a),
          .b = matrix_of(b),
          .added = matrix_of(added),
          .out = matrix_of(out),
          .transpose_a = description.transpose_a != CUBLAS_OP_N,
          .transpose_b = description.transpose_b != CUBLAS_OP_N,
          .bias_type = description.bias_type};
}

// A GPU would fault, or a kernel that was chosen for aligned operands would read others.
void check_alignments(const Kernel& kernel, const Gemm& gemm) {
  const void* const data[] = {gemm.a_data, gemm.b_data, gemm.beta != 0 ? gemm.added_data : nullptr, gemm.out_data};
  for (std::size_t i = 0; i < kernel.alignments.size(); ++i)
    if (reinterpret_cast<std::uintptr_t>(data[i]) % kernel.alignments[i] != 0)
      stop("cublasLtMatmul: %c is at %p, the kernel was chosen for an alignment of %u bytes", "ABCD"[i], data[i],
           kernel.alignments[i]);
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "a status that the emulated cuBLASLt does not have";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return create(handle, char{}); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy<char>(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(handle, Description{.compute = compute, .scale = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) { return destroy<Description>(handle); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  auto& description = *reinterpret_cast<Description*>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(description.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(description.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(description.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(description.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: {
      cublasLtEpilogue_t epilogue{};
      if (const auto status = set(epilogue, value, bytes); status != CUBLAS_STATUS_SUCCESS) return status;
      if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
      description.epilogue = epilogue;
      return CUBLAS_STATUS_SUCCESS;
    }
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
  if (stride < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  return create(handle, Matrix{type, rows, columns, stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) { return destroy<Matrix>(handle); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  return create(handle, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  return destroy<Preference>(handle);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  auto& preference = *reinterpret_cast<Preference*>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(preference.max_workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(preference.reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(preference.alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(preference.alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(preference.alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(preference.alignments[3], value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t handle, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t added,
                                              cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t request,
                                              int capacity, cublasLtMatmulHeuristicResult_t results[], int* count) {
  if (!handle || !a || !b || !added || !out || !request || !results || !count || capacity < 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  *count = 0;
  const Gemm gemm = gemm_of(described(handle), a, b, added, out);
  if (const auto status = check(described(handle), gemm); status != CUBLAS_STATUS_SUCCESS) return status;
  const auto& preference = *reinterpret_cast<const Preference*>(request);
  const Kernel kernel{kernel_mark, std::min(preference.max_workspace, workspace_wanted), preference.alignments};
  for (; *count < std::min(capacity, kernels_offered); ++*count) {
    cublasLtMatmulHeuristicResult_t& result = results[*count];
    result = {};
    std::memcpy(&result.algo, &kernel, sizeof kernel);
    result.workspaceSize = kernel.workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t handle, const void* alpha, const void* a_data,
                              cublasLtMatrixLayout_t a, const void* b_data, cublasLtMatrixLayout_t b, const void* beta,
                              const void* added_data, cublasLtMatrixLayout_t added, void* out_data,
                              cublasLtMatrixLayout_t out, const cublasLtMatmulAlgo_t* chosen, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  if (!handle || !alpha || !a || !b || !beta || !added || !out || !chosen) return CUBLAS_STATUS_INVALID_VALUE;
  const Description& description = described(handle);
  Gemm gemm = gemm_of(description, a, b, added, out);
  if (const auto status = check(description, gemm); status != CUBLAS_STATUS_SUCCESS) return status;
  gemm.alpha = *static_cast<const float*>(alpha);
  gemm.beta = *static_cast<const float*>(beta);
  gemm.a_data = a_data;
  gemm.b_data = b_data;
  gemm.added_data = added_data;
  gemm.out_data = out_data;
  const bool biased = description.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (biased) gemm.bias_data = description.bias;
  Kernel kernel{};
  std::memcpy(&kernel, chosen, sizeof kernel);
  const bool in_place = gemm.beta != 0 && added_data == out_data;
  if ((biased && !description.bias) || kernel.mark != kernel_mark || kernel.workspace > workspace_bytes ||
      (in_place && gemm.added.stride != gemm.out.stride))
    return CUBLAS_STATUS_INVALID_VALUE;
  check_alignments(kernel, gemm);
  const cudaError_t status = enqueue_host(stream, [gemm, workspace, bytes = kernel.workspace] {
    if (bytes > 0) std::memset(workspace, 0xff, bytes);
    multiply(gemm);
  });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"

}  // namespace cuda_on_cpu
