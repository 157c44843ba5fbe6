#pragma once
// Which communication overlaps with computation. The results are bitwise the same with and without overlap.

#include <span>

namespace tera {

struct Field;

struct CommOverlapConfig {
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool tp_comm_overlap = false;
  bool overlap_p2p_comm = true;
  bool overlap_moe_expert_parallel_comm = false;

  static std::span<const Field> fields();
  bool operator==(const CommOverlapConfig&) const = default;
};

}  // namespace tera
