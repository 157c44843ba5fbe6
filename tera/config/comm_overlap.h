#pragma once
// Which communication runs beside computation. None of it changes a bit of the results.

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
