#pragma once
// GEMMs by cuBLASLt. Each shape gets one plan: descriptors and a kernel, chosen among the library's
// candidates by timing (prepare), by the file of earlier choices, or, for a shape nobody announced, by the library's
// own ranking.
//
// The library is column-major; our rows are its columns. out [M,N] = a b is out^T [N,M] = b^T a^T there, so b comes
// first and M and N change places.

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "tera/backend/cuda/libraries/cublaslt_api.h"
#include "tera/backend/cuda/libraries/gemm_choices.h"
#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/ops/gemm.h"

namespace tera::cuda {

// Everything a plan depends on.
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, out_stride = 0, residual_stride = 0;  // row strides; residual 0: none
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  // true for every weight gradient too, which some calls add and others write
  bool bias = false;
  DType in = DType::f32, out = DType::f32;
  int alignment = 16;  // bytes that every address and row is a multiple of, at most 16

  explicit GemmProblem(const GemmArgs& args);
  bool operator==(const GemmProblem&) const = default;
  std::string name() const;  // "bf16 16384x2048x8192 nt +residual", and what is unusual; names the choice in the file
};

// The library takes a bias and a residual of the output's own type only; with rows that are not aligned it rounds to 16
// bits before it adds the bias, and so it does before it adds to an output of 16 bits in place. Such GEMMs are small
// or rare: models add in place to gradients only, which are fp32.
bool cublaslt_supports(const GemmArgs& args);

class CublasLt {
 public:
  explicit CublasLt(const CudaOptions& options);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Chooses a kernel for each GEMM: from the file of choices, else by timing in `spare`; then writes the file.
  void prepare(std::span<const GemmArgs> gemms, std::span<std::byte> workspace, std::span<std::byte> spare,
               cudaStream_t stream);

  std::string remarks() const { return remarks_; }

  // False when the library has no kernel for the GEMM.
  bool run(const GemmArgs& args, std::span<std::byte> workspace, cudaStream_t stream);

 private:
  struct Plan {
    cublasLtMatmulDesc_t matmul = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, residual = nullptr, out = nullptr;
    std::vector<cublasLtMatmulHeuristicResult_t> candidates;  // the library's ranking
    std::size_t chosen = 0;
  };
  struct Hash {
    std::size_t operator()(const GemmProblem& problem) const;
  };

  static constexpr int candidates_asked = 16;

  Plan& plan_of(const GemmArgs& args);
  Plan make_plan(const GemmProblem& problem);
  void find_candidates(const GemmProblem& problem, Plan& plan);
  void launch(const Plan& plan, std::size_t candidate, const GemmArgs& args, std::span<std::byte> workspace,
              cudaStream_t stream);
  std::size_t time_candidates(const Plan& plan, const GemmArgs& args, std::span<std::byte> workspace,
                              cudaStream_t stream);
  std::string list_options() const;
  void check(cublasStatus_t status, const char* what) const;

  CublasLtApi api_;
  CudaOptions options_;
  cublasLtHandle_t handle_ = nullptr;
  std::unordered_map<GemmProblem, Plan, Hash> plans_;
  std::string remarks_;  // remarks of prepare()
};

}  // namespace tera::cuda
