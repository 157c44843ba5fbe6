#pragma once
// The GEMM of the stand-in for cuBLASLt, column-major as there.

#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace cuda_on_cpu {

struct Matrix {
  cudaDataType_t type = CUDA_R_32F;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t stride = 0;  // elements from one column to the next
};

std::size_t bytes_of(cudaDataType_t type);  // element size; 0 for a type that is not known here

// out = alpha op(a) op(b) + beta added + bias, where op() may transpose and the bias is one value for each row.
struct Gemm {
  Matrix a, b, added, out;
  bool transpose_a = false, transpose_b = false;
  cudaDataType_t bias_type = CUDA_R_32F;
  float alpha = 1, beta = 0;
  const void *a_data = nullptr, *b_data = nullptr, *added_data = nullptr, *bias_data = nullptr;
  void* out_data = nullptr;
};

std::uint64_t rows_of_a(const Gemm& gemm);  // rows of op(a); the other functions are of op(a) and op(b), too
std::uint64_t columns_of_a(const Gemm& gemm);
std::uint64_t rows_of_b(const Gemm& gemm);
std::uint64_t columns_of_b(const Gemm& gemm);

// Sums are in a fixed order: float over pieces of k, which are added up in double.
void multiply(const Gemm& gemm);

}  // namespace cuda_on_cpu
