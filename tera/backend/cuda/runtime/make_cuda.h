#pragma once
// The factory of the CUDA backend. Built without CUDA, no_cuda.cpp answers it with an error.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "tera/ops/ops.h"
#include "tera/ops/workspace.h"
#include "tera/tensor/device.h"

namespace tera::cuda {

// When our kernels for a Hopper compute what libraries have kernels for as well (the backward of attention, GEMMs with
// SwiGLU): where they are faster, wherever they support the call, or never, as on other GPUs. Tests compare these.
enum class HopperKernels : std::uint8_t { where_faster, wherever_supported, never };

struct CudaOptions {
  int device = 0;
  bool deterministic = true;     // no kernel whose result depends on timing
  bool exact_attention = false;  // in fp32 throughout, by kernels of our own: what cuDNN is checked against
  HopperKernels hopper_kernels = HopperKernels::where_faster;
  bool only_plain_gemm = false;   // GEMMs by plain kernels of our own alone: the reference for others
  bool time_gemms = true;         // choose GEMM kernels by timing; else by the library's heuristic, equal on all ranks
  bool tf32 = false;              // let fp32 GEMMs round their operands to 10 bits of mantissa
  std::filesystem::path choices;  // file that keeps the kernels chosen by timing; empty: choose anew
};

struct CudaParts {
  std::string name;       // "cuda, NVIDIA H200"
  double peak_flops = 0;  // FLOP/s of dense bf16 GEMMs, from the data sheet; 0: not known
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

// UserError when there is no GPU that this program can use.
CudaParts make_cuda(const CudaOptions& options);

// Whether make_cuda would find a GPU.
bool usable();

// Why it would not, though a GPU or a driver for one is there; else empty.
std::string why_left_aside();

// Processes of one machine take its GPUs in turn.
int device_of(int local_rank);

// How much workspace the backend takes; the same whether CUDA is built in or not, so that any machine can plan.
// deterministic: as in CudaOptions.
std::unique_ptr<WorkspaceRules> make_cuda_workspace_rules(bool deterministic = true);

}  // namespace tera::cuda
