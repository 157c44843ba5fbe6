#include "tera/backend/cuda/runtime/gpu_facts.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace tera::cuda {
namespace {

bool contains(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

}  // namespace

double peak_flops_of(std::string_view gpu) {
  // In TFLOP/s, of the SXM parts and the L40S. A name that is part of another comes after it.
  constexpr std::array table{std::pair{std::string_view("GB200"), 2500.0}, std::pair{std::string_view("B200"), 2250.0},
                             std::pair{std::string_view("H200"), 989.0},   std::pair{std::string_view("H100"), 989.0},
                             std::pair{std::string_view("A100"), 312.0},   std::pair{std::string_view("L40S"), 362.0}};
  constexpr std::array<std::string_view, 3> others{"PCIe", "NVL", "MIG"};
  if (std::any_of(others.begin(), others.end(), [&](std::string_view word) { return contains(gpu, word); })) return 0;
  for (const auto& [name, tera_flops] : table)
    if (contains(gpu, name)) return tera_flops * 1e12;
  return 0;
}

std::string no_kernels_for(std::string_view architectures, int major, int minor) {
  return fmt::format("no kernels for compute capability {}.{}: built for {} (-DCMAKE_CUDA_ARCHITECTURES={}{} adds it)",
                     major, minor, architectures, major, minor);
}

std::string why_gpu_is_left_aside(const CudaInfo& info, const CudaLibraries& libraries) {
  if (info.driver.empty()) return {};
  if (!info.problem.empty()) return info.problem;
  if (info.gpus.empty()) return "the driver lists no GPU";
  if (const GpuInfo& gpu = info.gpus.front(); !gpu.problem.empty()) return fmt::format("{}: {}", gpu.name, gpu.problem);
  return libraries.cublaslt.empty() ? "cuBLASLt was not found" : "";
}

}  // namespace tera::cuda
