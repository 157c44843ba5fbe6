#include "tools/lint/include_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

namespace tera::lint {
namespace {

using Name = std::string_view;

// A folder includes itself, its subfolders and the folders before it. A plan rehearses the steps of training, and
// training reads its plan before it starts, so these two may include each other.
constexpr std::array<Name, 20> order{"base",       "tokenizer", "tensor", "ops",    "comm",     "parallel", "config",
                                     "hf/config",  "setup",     "nn",     "models", "pipeline", "optim",    "data",
                                     "checkpoint", "hf",        "plan",   "train",  "bench",    "infer"};
// Implementations of ops, comm and tensor/device.h; they may not include the folders that use these.
constexpr std::array<Name, 6> implementations{"backend/plan", "backend/cpu", "backend/cuda",
                                              "comm/mpi",     "comm/nccl",   "comm/control"};
constexpr std::array<Name, 4> below_implementations{"base", "tensor", "ops", "comm"};
// Kernels are compiled once per instruction set: an inline function from another header, compiled here with wide
// instructions, could be the copy that the linker keeps for the whole program.
constexpr Name kernel_folder = "tera/backend/cpu/kernels/";
// Headers that kernels may include; type_traits is among them because it has no functions that could leak.
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

std::string implementation_problem(Name from, Name to) {
  if (from == to || contains(below_implementations, to)) return {};
  // Ranks that are processes report over the control plane; those over NCCL copy GPU memory and wait on streams.
  if (to == "comm/control" && (from == "comm/mpi" || from == "comm/nccl")) return {};
  if (to == "backend/cuda" && from == "comm/nccl") return {};
  return fmt::format("{} may include only {} and itself", from, fmt::join(below_implementations, ", "));
}

std::string order_problem(Name path, Name from, Name to) {
  constexpr std::array<Name, 4> rehearse{"train", "plan", "bench", "infer"};
  if (contains(rehearse, from) && to == "backend/plan") return {};
  if (contains(implementations, to)) {
    if (path == "tera/train/setup.cpp") return {};
    return "of the library, only tera/train/setup.cpp sees backends";
  }
  if (from == "plan" && to == "train") return {};
  const auto from_at = std::find(order.begin(), order.end(), from);
  const auto to_at = std::find(order.begin(), order.end(), to);
  if (from_at == order.end()) return fmt::format("tera/{} has no place yet in tools/lint/include_order.cpp", from);
  if (to_at == order.end()) return fmt::format("tera/{} has no place yet in tools/lint/include_order.cpp", to);
  if (to_at <= from_at) return {};
  return fmt::format("{} comes after {} in the order of folders", to, from);
}

}  // namespace

std::string_view folder_of(std::string_view path) {
  constexpr Name root = "tera/";
  if (!path.starts_with(root)) return {};
  const Name rest = path.substr(root.size());
  Name found = rest.substr(0, rest.find('/') == Name::npos ? 0 : rest.find('/'));
  const auto look = [&](std::span<const Name> names) {
    for (const Name name : names)
      if (name.size() > found.size() && rest.starts_with(name) && rest.substr(name.size()).starts_with('/'))
        found = name;
  };
  look(order);
  look(implementations);
  return found;
}

std::string include_problem(std::string_view path, std::string_view header) {
  if (path.starts_with(kernel_folder)) return kernel_problem(header);
  const Name from = folder_of(path), to = folder_of(header);
  if (from.empty() || to.empty()) return {};
  return contains(implementations, from) ? implementation_problem(from, to) : order_problem(path, from, to);
}

}  // namespace tera::lint
