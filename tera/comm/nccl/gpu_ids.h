#pragma once
// Checks that no two ranks have one GPU. They would wait for each other forever, or NCCL refuses them without a useful
// message.

#include <array>
#include <cstdint>
#include <string>

#include "tera/comm/control/control.h"

namespace tera::nccl {

using control::Control;
using control::ControlGroup;

struct GpuId {
  std::array<char, 16> gpu{};  // its uuid
  std::uint64_t machine = 0;   // hash of NCCL_HOSTID: ranks that differ in it may share a GPU
  bool operator==(const GpuId&) const = default;
};

// For the error message: the name of the GPU, and the environment variable that would have given this rank's GPU on its
// machine, if it was not set.
struct GpuErrorContext {
  std::string name{}, no_local_rank{};
};
// UserError where two ranks have one GpuId.
void check_gpu_ids(Control& control, ControlGroup& world, const GpuId& local, const GpuErrorContext& context);

}  // namespace tera::nccl
