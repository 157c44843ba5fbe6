#include "tools/lint/include_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

namespace tera::lint {
namespace {

using Name = std::string_view;

// A folder includes itself and those before it; train comes last and sees them all.
constexpr std::array<Name, 13> order{"base",   "tokenizer", "config", "tensor", "ops",        "comm", "nn",
                                     "models", "pipeline",  "optim",  "data",   "checkpoint", "train"};
// A backend implements ops, comm and tensor/device.h, and knows nothing of what stands on them.
constexpr std::array<Name, 4> below_backends{"base", "tensor", "ops", "comm"};
// These files are compiled once per instruction set: an inline function from elsewhere, compiled there with wide
// instructions, could be the copy that the linker keeps for the whole program.
constexpr Name kernel_folder = "tera/backend/cpu/kernels/";
// (type_traits has no functions to leak.)
constexpr std::array<Name, 11> kernel_headers{
    "tera/base/kinds.h", "tera/tensor/dtype.h", "cstdint",     "cstddef",   "cmath", "cstring", "math.h",
    "string.h",          "type_traits",         "immintrin.h", "arm_neon.h"};

bool contains(std::span<const Name> names, Name name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string kernel_problem(Name header) {
  if (header.starts_with(kernel_folder) || contains(kernel_headers, header)) return {};
  return fmt::format("kernels may include only their own headers and {}", fmt::join(kernel_headers, ", "));
}

std::string backend_problem(Name from, Name to) {
  if (from == to || contains(below_backends, to)) return {};
  if (from == "backend/nccl" && to == "backend/cuda")
    return {};  // it moves the memory of GPUs, and waits on their queues
  return fmt::format("{} may include only {} and itself", from, fmt::join(below_backends, ", "));
}

std::string order_problem(Name path, Name from, Name to) {
  if (from == "train" && to == "backend/plan") return {};  // rehearsing a step is part of training
  if (to.starts_with("backend/")) {
    if (path == "tera/train/setup.cpp") return {};
    return "of the library, only tera/train/setup.cpp sees backends";
  }
  const auto from_at = std::find(order.begin(), order.end(), from);
  const auto to_at = std::find(order.begin(), order.end(), to);
  if (from_at == order.end()) return fmt::format("tera/{} has no place yet in tools/lint/include_order.cpp", from);
  if (to_at == order.end()) return fmt::format("tera/{} has no place yet in tools/lint/include_order.cpp", to);
  if (to_at <= from_at) return {};
  return fmt::format("{} comes after {} in the order of folders", to, from);
}

}  // namespace

std::string_view folder_of(std::string_view path) {
  constexpr Name root = "tera/", backends = "tera/backend/";
  if (!path.starts_with(root)) return {};
  const std::size_t end = path.find('/', path.starts_with(backends) ? backends.size() : root.size());
  return end == Name::npos ? Name{} : path.substr(root.size(), end - root.size());
}

std::string include_problem(std::string_view path, std::string_view header) {
  if (path.starts_with(kernel_folder)) return kernel_problem(header);
  const Name from = folder_of(path), to = folder_of(header);
  if (from.empty() || to.empty()) return {};
  return from.starts_with("backend/") ? backend_problem(from, to) : order_problem(path, from, to);
}

}  // namespace tera::lint
