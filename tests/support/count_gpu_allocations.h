#pragma once
// Counts calls that allocate memory of a GPU, or pinned memory of the host. The CUDA runtime is linked statically, so a
// function of the same name cannot replace it as in count_allocations.h; the linker redirects the calls of the whole
// program instead (--wrap, in tests/cuda/CMakeLists.txt). Libraries that are opened at run time have a runtime of their
// own and are not seen here: what they allocate shows in the free memory of the GPU alone.

#include <cstdint>

namespace tera::test {

std::int64_t gpu_allocations();  // so far, in this process

}  // namespace tera::test
