#pragma once
// Who has which GPU. Two ranks on one would wait for each other forever, or NCCL refuses them with words that help
// nobody.

#include <array>
#include <cstdint>
#include <string>

#include "tera/backend/nccl/control.h"

namespace tera::nccl {

struct GpuPlace {
  std::array<char, 16> gpu{};  // its uuid
  std::uint64_t machine = 0;   // of NCCL_HOSTID: ranks that differ in it may share a GPU
  bool operator==(const GpuPlace&) const = default;
};

// UserError where two ranks have one place. For its message: what the GPU is called, and which variable of the
// environment would have said which GPU of its machine is this rank's, if that was not set.
struct GpuWords {
  std::string name{}, no_local_rank{};
};
void check_gpu_places(Control& control, ControlGroup& world, const GpuPlace& own, const GpuWords& words);

}  // namespace tera::nccl
