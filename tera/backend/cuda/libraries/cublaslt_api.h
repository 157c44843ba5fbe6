#pragma once
// The functions of cuBLASLt that the backend calls, resolved when a GPU is first used: the library has half a gigabyte,
// and a program that only runs on the CPU should not need it.

#include <cublasLt.h>

#include <memory>
#include <string>

namespace tera::cuda {

struct CublasLtApi {
  CublasLtApi();  // UserError when the library is not there

  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;

 private:
  struct Close {
    void operator()(void* library) const;
  };
  std::unique_ptr<void, Close> library_;
};

// The version of the library that would be opened, "13.1.0"; empty when it is not there.
std::string cublaslt_version();

}  // namespace tera::cuda
