#pragma once
#include <cstdint>

#include "tera/backend/cpu/kernels/isa.h"

namespace tera::cpu {

// See tera/ops/route.h.
inline constexpr int max_route_experts = 512, max_route_topk = 32;

struct RouteRule {
  std::int64_t experts, topk;
  bool sigmoid, renormalize, force_balance;
  float scale;
  std::int64_t groups, group_topk, group_best;
};
struct RouteRows {
  const float* logits;       // [T,E]
  const float* bias;         // [E] or null
  const std::int64_t* rows;  // [T], with force_balance
  std::int32_t* experts;     // [T,K]
  float* weights;            // [T,K]
  RouteRule rule;
};
// Sums of a block of rows; null: not requested.
struct RouteSums {
  float* scores;         // [E]
  std::int32_t* counts;  // [E]
  float* z;              // [1]
};
struct RouteBackRows {
  const float* logits;
  const std::int32_t* experts;
  const float* dweights;
  const float* loads;  // [P,E] or null
  std::int64_t part_rows, first_row;
  float z_scale;  // 0: no z-loss
  float* dlogits;
  RouteRule rule;
};

struct RouteKernels {
  void (*route)(const RouteRows& args, const RouteSums& sums, std::int64_t begin, std::int64_t end);
  void (*back)(const RouteBackRows& args, std::int64_t begin, std::int64_t end);
};

template <Isa isa>
const RouteKernels& route_kernels();

}  // namespace tera::cpu
