#include "tera/backend/cuda/libraries/cublaslt_api.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include "tera/backend/cuda/runtime/open_library.h"
#include "tera/base/error.h"

namespace tera::cuda {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  require_user(function != nullptr, "the cuBLASLt library on this machine has no {}; a newer one is needed", name);
}

}  // namespace

void CublasLtApi::Close::operator()(void* library) const { dlclose(library); }

CublasLtApi::CublasLtApi() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  library_.reset(open_library(name.c_str()));
  require_user(library_ != nullptr, "a GPU needs {} (CUDA toolkit {}.x), which was not found", name, CUBLAS_VER_MAJOR);
  find(library_.get(), "cublasLtCreate", create);
  find(library_.get(), "cublasLtDestroy", destroy);
  find(library_.get(), "cublasLtGetVersion", version);
  find(library_.get(), "cublasLtGetStatusString", status_string);
  find(library_.get(), "cublasLtMatmul", matmul);
  find(library_.get(), "cublasLtMatmulDescCreate", desc_create);
  find(library_.get(), "cublasLtMatmulDescDestroy", desc_destroy);
  find(library_.get(), "cublasLtMatmulDescSetAttribute", desc_set);
  find(library_.get(), "cublasLtMatrixLayoutCreate", layout_create);
  find(library_.get(), "cublasLtMatrixLayoutDestroy", layout_destroy);
  find(library_.get(), "cublasLtMatmulPreferenceCreate", preference_create);
  find(library_.get(), "cublasLtMatmulPreferenceDestroy", preference_destroy);
  find(library_.get(), "cublasLtMatmulPreferenceSetAttribute", preference_set);
  find(library_.get(), "cublasLtMatmulAlgoGetHeuristic", heuristic);
}

std::string cublaslt_version() {
  try {
    const std::size_t version = CublasLtApi().version();
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  } catch (const UserError&) {
    return {};
  }
}

}  // namespace tera::cuda
