#include "tera/backend/cuda/runtime/open_library.h"

#include <dlfcn.h>

#include <string>

namespace tera::cuda {

void* open_library(const char* name) {
  constexpr int how = RTLD_NOW | RTLD_GLOBAL;
  void* handle = dlopen(name, how);
  return handle ? handle : dlopen((std::string(TERA_CUDA_LIBRARY_DIR "/") + name).c_str(), how);
}

}  // namespace tera::cuda
