// The emulated cuBLASLt against loops in double precision, and what it refuses.

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/cuda_on_cpu/cuda_objects.h"

namespace tera::test {
namespace {

struct Case {
  int m, n, k;
  bool transpose_a = false, transpose_b = false;
  cudaDataType_t in = CUDA_R_32F, out = CUDA_R_32F;
  float alpha = 1, beta = 0;
  bool bias = false;
  int gap = 0;  // elements between columns
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

double read(const void* data, cudaDataType_t type, int i) {
  if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[i]);
  return static_cast<const float*>(data)[i];
}

void write(void* data, cudaDataType_t type, int i, float value) {
  if (type == CUDA_R_16BF)
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  else if (type == CUDA_R_16F)
    static_cast<__half*>(data)[i] = __float2half_rn(value);
  else
    static_cast<float*>(data)[i] = value;
}

double epsilon_of(cudaDataType_t type) {
  return type == CUDA_R_16BF ? 1.0 / 256 : type == CUDA_R_16F ? 1.0 / 2048 : 1.0 / (1 << 24);
}

// A matrix of random values on the device, with its layout.
class Operand {
 public:
  Operand(int rows, int columns, int gap, cudaDataType_t type, std::mt19937& random)
      : rows_(rows), stride_(rows + gap), type_(type), values_(static_cast<std::size_t>(stride_ * columns)) {
    std::uniform_real_distribution<float> some(-1, 1);
    for (int i = 0; i < stride_ * columns; ++i) write(data(), type, i, some(random));
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout_, type, static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), stride_),
              CUBLAS_STATUS_SUCCESS);
  }
  ~Operand() { cublasLtMatrixLayoutDestroy(layout_); }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  void* data() const { return values_.get(); }
  cublasLtMatrixLayout_t layout() const { return layout_; }
  double at(int row, int column) const { return read(data(), type_, column * stride_ + row); }
  double in_gap(int column) const { return read(data(), type_, column * stride_ + rows_); }  // in the gap

 private:
  int rows_, stride_;
  cudaDataType_t type_;
  Memory<float> values_;
  cublasLtMatrixLayout_t layout_ = nullptr;
};

struct Trial {
  Case c;
  std::mt19937 random{1};
  Operand a{c.transpose_a ? c.k : c.m, c.transpose_a ? c.m : c.k, c.gap, c.in, random};
  Operand b{c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n, c.gap, c.in, random};
  Operand added{c.m, c.n, c.gap, c.out, random}, out{c.m, c.n, c.gap, c.out, random}, bias{c.m, 1, 0, c.out, random};
  Memory<float> workspace{1 << 18};
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t matmul = nullptr;
  cublasLtMatmulHeuristicResult_t found[8] = {};
  int count = 0;

  explicit Trial(const Case& its_case) : c(its_case) {
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&matmul, c.compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    set(CUBLASLT_MATMUL_DESC_TRANSA, c.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, c.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (!c.bias) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, c.out);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data());
  }
  ~Trial() {
    cublasLtMatmulDescDestroy(matmul);
    cublasLtDestroy(handle);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(matmul, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t choose(std::size_t workspace_bytes = 1 << 20, int max_results = 8) {
    cublasLtMatmulPreference_t preference = nullptr;
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &workspace_bytes, sizeof workspace_bytes),
              CUBLAS_STATUS_SUCCESS);
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, matmul, a.layout(), b.layout(), added.layout(),
                                                                 out.layout(), preference, max_results, found, &count);
    EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
    return status;
  }
  cublasStatus_t run(int kernel, const void* added_data, std::size_t workspace_bytes, cudaStream_t stream = nullptr) {
    return cublasLtMatmul(handle, matmul, &c.alpha, a.data(), a.layout(), b.data(), b.layout(), &c.beta, added_data,
                          added.layout(), out.data(), out.layout(), &found[kernel].algo, workspace.get(),
                          workspace_bytes, stream);
  }
  double expected(int row, int column) const {
    double sum = 0;
    for (int x = 0; x < c.k; ++x)
      sum += (c.transpose_a ? a.at(x, row) : a.at(row, x)) * (c.transpose_b ? b.at(column, x) : b.at(x, column));
    sum *= c.alpha;
    if (c.beta != 0) sum += c.beta * added.at(row, column);
    return c.bias ? sum + bias.at(row, 0) : sum;
  }
};

void check(const Case& c) {
  Trial trial(c);
  ASSERT_EQ(trial.choose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(trial.count, 2);
  std::vector<double> gaps;
  for (int j = 0; j < c.n && c.gap > 0; ++j) gaps.push_back(trial.out.in_gap(j));
  for (int kernel = 0; kernel < trial.count; ++kernel) {
    ASSERT_EQ(trial.run(kernel, trial.added.data(), trial.workspace.bytes()), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    double worst = 0;
    for (int j = 0; j < c.n; ++j)
      for (int i = 0; i < c.m; ++i) {
        const double expected = trial.expected(i, j), error = std::abs(trial.out.at(i, j) - expected);
        worst = std::max(worst, error / (epsilon_of(c.out) * (std::abs(expected) + 1) + 4e-7 * std::sqrt(c.k)));
      }
    EXPECT_LE(worst, 1) << c.m << "x" << c.n << "x" << c.k << " types " << c.in << " to " << c.out;
    for (int j = 0; j < c.n && c.gap > 0; ++j) EXPECT_EQ(trial.out.in_gap(j), gaps[static_cast<std::size_t>(j)]);
  }
}

TEST(CudaOnCpuCublasLt, MultipliesLikeLoopsInDouble) {
  for (const bool transpose_a : {false, true})
    for (const bool transpose_b : {false, true}) {
      check({.m = 33, .n = 7, .k = 300, .transpose_a = transpose_a, .transpose_b = transpose_b});
      check({.m = 5, .n = 9, .k = 3, .transpose_a = transpose_a, .transpose_b = transpose_b, .gap = 3});
    }
  check({.m = 1, .n = 1, .k = 1});
  check({.m = 64, .n = 48, .k = 1000, .compute = CUBLAS_COMPUTE_32F_FAST_TF32});
}

TEST(CudaOnCpuCublasLt, SupportsTypesFactorsAndBias) {
  for (const cudaDataType_t in : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F})
    for (const cudaDataType_t out : {in, CUDA_R_32F}) {
      check({.m = 20, .n = 6, .k = 40, .transpose_a = true, .in = in, .out = out});
      check({.m = 20, .n = 6, .k = 40, .in = in, .out = out, .alpha = 0.5F, .beta = 2, .bias = true, .gap = 1});
      check({.m = 20, .n = 6, .k = 40, .in = in, .out = out, .bias = true});
    }
}

TEST(CudaOnCpuCublasLt, AddsInPlace) {
  Trial trial({.m = 17, .n = 5, .k = 11, .beta = 1});
  ASSERT_EQ(trial.choose(), CUBLAS_STATUS_SUCCESS);
  const double before = trial.out.at(16, 4), added = trial.added.at(16, 4);
  ASSERT_EQ(trial.run(0, trial.out.data(), trial.workspace.bytes()), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_NEAR(trial.out.at(16, 4), trial.expected(16, 4) - added + before, 1e-5);
}

// Where beta is 0, the previous output is not read: it may be NaN.
TEST(CudaOnCpuCublasLt, WithoutAFactorNothingIsAdded) {
  Trial trial({.m = 4, .n = 4, .k = 4});
  ASSERT_EQ(trial.choose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaMemset(trial.out.data(), 0xff, 64), cudaSuccess);
  ASSERT_EQ(trial.run(0, trial.out.data(), trial.workspace.bytes()), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_NEAR(trial.out.at(3, 3), trial.expected(3, 3), 1e-5);
}

TEST(CudaOnCpuCublasLt, ItsWorkspaceIsOverwritten) {
  Trial trial({.m = 4, .n = 4, .k = 4});
  ASSERT_EQ(trial.choose(1000), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(trial.found[1].workspaceSize, 1000u);
  ASSERT_EQ(cudaMemset(trial.workspace.get(), 0, trial.workspace.bytes()), cudaSuccess);
  EXPECT_EQ(trial.run(1, trial.added.data(), 999), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(trial.run(1, trial.added.data(), 1000), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_NE(trial.workspace[249], trial.workspace[249]);
  EXPECT_EQ(trial.workspace[250], 0);
}

TEST(CudaOnCpuCublasLt, IsPartOfAGraph) {
  Trial trial({.m = 4, .n = 4, .k = 4, .beta = 1});
  ASSERT_EQ(trial.choose(), CUBLAS_STATUS_SUCCESS);
  const Stream stream;
  const double before = trial.out.at(0, 0), matmul = trial.expected(0, 0) - trial.added.at(0, 0);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(trial.run(0, trial.out.data(), trial.workspace.bytes(), stream), CUBLAS_STATUS_SUCCESS);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
  stream.wait();
  EXPECT_NEAR(trial.out.at(0, 0), before + 3 * matmul, 1e-5);
  EXPECT_EQ(cudaGraphExecDestroy(ready), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST(CudaOnCpuCublasLt, RefusesWhatItHasNoKernelFor) {
  EXPECT_EQ(Trial({.m = 4, .n = 4, .k = 4, .in = CUDA_R_16F, .out = CUDA_R_16BF}).choose(),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Trial({.m = 4, .n = 4, .k = 4, .in = CUDA_R_32F, .out = CUDA_R_16BF}).choose(),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Trial({.m = 4, .n = 4, .k = 4, .compute = CUBLAS_COMPUTE_64F}).choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  Trial mismatched({.m = 4, .n = 4, .k = 5});
  mismatched.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  EXPECT_EQ(mismatched.choose(), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(mismatched.count, 0);
  cublasLtMatrixLayout_t layout = nullptr;
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 8, 4, 7), CUBLAS_STATUS_INVALID_VALUE);
  const cublasLtEpilogue_t gelu = CUBLASLT_EPILOGUE_GELU;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(mismatched.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &gelu, sizeof gelu),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(mismatched.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &gelu, 1),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST(CudaOnCpuCublasLtDeathTest, AnOperandThatIsLessAlignedThanStatedEndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Trial trial({.m = 4, .n = 4, .k = 4});
  ASSERT_EQ(trial.choose(), CUBLAS_STATUS_SUCCESS);
  void* const moved = static_cast<float*>(trial.a.data()) + 1;
  const auto run = [&] {
    cublasLtMatmul(trial.handle, trial.matmul, &trial.c.alpha, moved, trial.a.layout(), trial.b.data(),
                   trial.b.layout(), &trial.c.beta, trial.added.data(), trial.added.layout(), trial.out.data(),
                   trial.out.layout(), &trial.found[0].algo, trial.workspace.get(), trial.workspace.bytes(), nullptr);
  };
  EXPECT_DEATH(run(), "A is at .* alignment of 256 bytes");
}

}  // namespace
}  // namespace tera::test
