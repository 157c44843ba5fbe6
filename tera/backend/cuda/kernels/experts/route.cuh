#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tera::cuda::kernels {

// The router of a mixture of experts; see tera/ops/route.h.
inline constexpr int max_route_experts = 512;

struct RouteRule {
  int experts, topk;  // topk: at most 32
  bool sigmoid, renormalize, force_balance;
  float scale;
  int groups, group_topk, group_best;
};

// Rows belong to parts, row t to (first_row + t) / part_rows.
struct RouteParts {
  std::int64_t rows, part_rows, first_row;
};

struct Route {
  const float* logits;       // [T,E]
  const float* bias;         // [E] or null
  const std::int64_t* rows;  // [T], with force_balance
  std::int32_t* experts;     // [T,K]
  float* weights;            // [T,K]
  RouteRule rule;

  RouteParts parts;
  // Blocks of rows, each inside of a part: per_part of them for each of the parts first_part to last_part.
  std::int64_t block_rows, per_part, blocks, first_part, last_part;

  // Null: not wanted.
  std::int32_t* counts;       // [all_parts,E]
  float *score_sums, *z_sum;  // [all_parts,E], [1]
  std::int64_t all_parts;
  // Partial sums of each block, where any are wanted.
  float *block_scores, *block_z;  // [blocks,E], [blocks]
  std::int32_t* block_counts;     // [blocks,E]
};

struct RouteBack {
  const float* logits;          // [T,E]
  const std::int32_t* experts;  // [T,K]
  const float* dweights;        // [T,K]
  const float* loads;           // [P,E] or null
  const float* z_scale;         // [1] or null
  float z_coefficient;
  float* dlogits;  // [T,E]
  RouteParts parts;
  RouteRule rule;
};

struct BalanceLoss {
  const std::int32_t* counts;  // either counts or shares is given
  const float* shares;
  const float *score_sums, *scale;
  float *loads, *loss;
  std::int64_t elements;
  double load_factor;  // scales counts, or shares, whichever is given
  bool accumulate;
};

struct ExpertBias {
  const std::int32_t* counts;
  float *bias, *shares;      // either may be none
  const float* grad_factor;  // optional
  std::int64_t experts;
  float rate;
};

cudaError_t launch_route(const Route& args, cudaStream_t stream);
cudaError_t launch_route_back(const RouteBack& args, cudaStream_t stream);
cudaError_t launch_balance_loss(const BalanceLoss& args, cudaStream_t stream);
cudaError_t launch_expert_bias(const ExpertBias& args, cudaStream_t stream);

}  // namespace tera::cuda::kernels
