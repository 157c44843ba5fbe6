#include "tera/backend/cuda/libraries/cublaslt.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "tera/backend/cuda/workspace.h"
#include "tera/base/error.h"

namespace tera::cuda {
namespace {

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}

std::int64_t row_stride(const Tensor& tensor) { return tensor.dim(0) > 1 ? tensor.stride[0] : tensor.dim(1); }

// The alignment of every row of a matrix; a vector (a bias) has one row.
int alignment_of(const Tensor& tensor) {
  if (!tensor) return 16;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  const bool rows = tensor.shape.rank > 1;
  const auto row = rows ? static_cast<std::uintptr_t>(row_stride(tensor)) * size_of(tensor.dtype) : 0;
  return static_cast<int>(std::gcd(std::gcd(address, row), std::uintptr_t{16}));
}

// Gradient accumulation: the first weight gradient of a step is written, later ones are added. One kernel computes
// both, so that a sum over microbatches has the same bits however it is begun.
bool is_weight_gradient(const GemmArgs& args) {
  return args.trans_a && args.out.dtype == DType::f32 && !args.bias && !args.residual;
}

}  // namespace

GemmProblem::GemmProblem(const GemmArgs& args)
    : m(args.m()),
      n(args.n()),
      k(args.k()),
      a_stride(row_stride(args.a)),
      b_stride(row_stride(args.b)),
      out_stride(row_stride(args.out)),
      residual_stride(args.residual ? row_stride(args.residual) : 0),
      trans_a(args.trans_a),
      trans_b(args.trans_b),
      accumulate(args.accumulate || is_weight_gradient(args)),
      bias(args.bias),
      in(args.a.dtype),
      out(args.out.dtype),
      alignment(std::min({alignment_of(args.a), alignment_of(args.b), alignment_of(args.out),
                          alignment_of(args.residual), alignment_of(args.bias)})) {}

std::string GemmProblem::name() const {
  std::string text = fmt::format("{} {}x{}x{} {}{}", name_of(in), m, n, k, trans_a ? 't' : 'n', trans_b ? 't' : 'n');
  if (out != in) text += fmt::format(" to {}", name_of(out));
  if (accumulate) text += " accumulate";
  if (bias) text += " +bias";
  if (residual_stride != 0) text += fmt::format(" +residual {}", residual_stride);
  return text + fmt::format(" rows {} {} {} align {}", a_stride, b_stride, out_stride, alignment);
}

bool cublaslt_supports(const GemmArgs& args) {
  if (args.k() == 0) return false;
  if (args.residual && args.residual.dtype != args.out.dtype) return false;
  const bool in_place = args.accumulate || (args.residual && args.residual.data == args.out.data);
  if (in_place && args.out.dtype != DType::f32) return false;
  if (!args.bias) return true;
  return args.bias.dtype == args.out.dtype && (args.out.dtype == DType::f32 || GemmProblem(args).alignment == 16);
}

std::size_t CublasLt::Hash::operator()(const GemmProblem& problem) const {
  std::size_t hash = 0;
  for (const std::int64_t value : {problem.m, problem.n, problem.k, problem.a_stride, problem.b_stride,
                                   problem.out_stride, problem.residual_stride, std::int64_t{problem.alignment}})
    hash = hash * 1000003 + static_cast<std::size_t>(value);
  return hash * 16 + problem.trans_a * 8 + problem.trans_b * 4 + problem.accumulate * 2 + problem.bias;
}

CublasLt::CublasLt(const CudaOptions& options) : options_(options) { check(api_.create(&handle_), "cublasLtCreate"); }

CublasLt::~CublasLt() {
  for (auto& [problem, plan] : plans_) {
    api_.desc_destroy(plan.matmul);
    for (auto layout : {plan.a, plan.b, plan.residual, plan.out}) api_.layout_destroy(layout);
  }
  api_.destroy(handle_);
}

void CublasLt::check(cublasStatus_t status, const char* what) const {
  require(status == CUBLAS_STATUS_SUCCESS, "{}: {}", what, api_.status_string(status));
}

CublasLt::Plan CublasLt::make_plan(const GemmProblem& problem) {
  Plan plan;
  const auto compute = problem.in == DType::f32 && options_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(api_.desc_create(&plan.matmul, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(api_.desc_set(plan.matmul, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  };
  // The library's first operand is our b, as [N,K] in its eyes.
  set(CUBLASLT_MATMUL_DESC_TRANSA, problem.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, problem.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (problem.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(problem.out));
  }
  // A matrix of ours with these rows and columns, as the library sees it.
  const auto layout = [&](cublasLtMatrixLayout_t& out, DType dtype, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride) {
    check(api_.layout_create(&out, type_of(dtype), static_cast<std::uint64_t>(columns),
                             static_cast<std::uint64_t>(rows), stride),
          "cublasLtMatrixLayoutCreate");
  };
  layout(plan.a, problem.in, problem.trans_a ? problem.k : problem.m, problem.trans_a ? problem.m : problem.k,
         problem.a_stride);
  layout(plan.b, problem.in, problem.trans_b ? problem.n : problem.k, problem.trans_b ? problem.k : problem.n,
         problem.b_stride);
  layout(plan.out, problem.out, problem.m, problem.n, problem.out_stride);
  layout(plan.residual, problem.out, problem.m, problem.n,
         problem.residual_stride != 0 ? problem.residual_stride : problem.out_stride);
  find_candidates(problem, plan);
  return plan;
}

void CublasLt::find_candidates(const GemmProblem& problem, Plan& plan) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(api_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(api_.preference_set(preference, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, gemm_workspace_bytes);
  const auto alignment = static_cast<std::uint32_t>(problem.alignment);
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(attribute, alignment);
  // Split-K only with partial sums that are reduced in the workspace, in order: in every run, or on every rank, the
  // same bits.
  if (options_.deterministic || !options_.time_gemms)
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  std::array<cublasLtMatmulHeuristicResult_t, candidates_asked> found{};
  int count = 0;
  const auto status = api_.heuristic(handle_, plan.matmul, plan.b, plan.a, plan.residual, plan.out, preference,
                                     candidates_asked, found.data(), &count);
  api_.preference_destroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) count = 0;
  for (const auto& candidate : std::span(found).first(static_cast<std::size_t>(count)))
    if (candidate.state == CUBLAS_STATUS_SUCCESS) plan.candidates.push_back(candidate);
}

CublasLt::Plan& CublasLt::plan_of(const GemmArgs& args) {
  const GemmProblem problem(args);
  const auto found = plans_.find(problem);
  return found != plans_.end() ? found->second : plans_.emplace(problem, make_plan(problem)).first->second;
}

void CublasLt::launch(const Plan& plan, std::size_t candidate, const GemmArgs& args, std::span<std::byte> workspace,
                      cudaStream_t stream) {
  if (args.bias)
    check(api_.desc_set(plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args.bias.data, sizeof(void*)),
          "cublasLtMatmulDescSetAttribute");
  const float alpha = 1, beta = args.accumulate || args.residual ? 1 : 0;
  const void* added = args.residual ? args.residual.data : args.out.data;
  const cublasStatus_t status = api_.matmul(
      handle_, plan.matmul, &alpha, args.b.data, plan.b, args.a.data, plan.a, &beta, added, plan.residual,
      args.out.data, plan.out, &plan.candidates[candidate].algo, workspace.data(), workspace.size(), stream);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("cublasLtMatmul refuses {} with kernel {} of {}: {}", GemmProblem(args).name(), candidate + 1,
       plan.candidates.size(), api_.status_string(status));
}

bool CublasLt::run(const GemmArgs& args, std::span<std::byte> workspace, cudaStream_t stream) {
  const Plan& plan = plan_of(args);
  if (plan.candidates.empty()) return false;
  launch(plan, plan.chosen, args, workspace, stream);
  return true;
}

}  // namespace tera::cuda
