#pragma once
// Token permutation for a mixture of experts: rows sorted by expert, and back. Each of T tokens chose K experts; choice
// k of token t has the number t*K + k. An expert's rows are contiguous, in the order of their choices. The number of
// rows per expert is known on the device only.

#include "tera/tensor/tensor.h"

namespace tera {

// Values in sources of rows that belong to no choice.
inline constexpr std::int32_t padding_row = -1;  // inside a group: filled with zeros
inline constexpr std::int32_t unused_row = -2;   // after the last group: not written

// Sorts choices by expert, for the G experts from first_expert on. All dense.
struct GroupRowsArgs {
  static constexpr std::int64_t max_router_experts = 1024;  // G

  Tensor experts;  // i32 [T,K]; choices of other experts, negative ones among them, are skipped
  std::int64_t first_expert = 0;
  Tensor offsets;  // i32 [G+1]: the rows of expert g are offsets[g] .. offsets[g+1]
  Tensor sources;  // i32 [R]: the choice of each row, or padding_row or unused_row
  Tensor places;   // i32 [T,K], the inverse permutation: the row of each choice, or -1: it has none here
  // 0 (dropless): every expert has a row for each of its choices, up to R rows. Else the capacity of each expert: it
  // has exactly so many rows, padded, or with the choices beyond them dropped.
  std::int64_t capacity = 0;
  // f32 [T,K], optional, with capacity: choices of the largest weights are kept, of equal weights the earlier, NaN
  // last. None: the earliest choices are kept.
  Tensor weights;
  Tensor overflow;  // i32 [1], optional: number of choices of these experts that were dropped

  std::int64_t choices() const { return experts.dim(0) * experts.dim(1); }
  std::int64_t groups() const { return offsets.dim(0) - 1; }
  void check() const;
};

// y[r] = x[sources[r] / topk]. x [T,H], sources i32 [R], y [R,H]; dense.
struct PermuteArgs {
  Tensor x, sources, y;
  std::int64_t topk = 1;  // K
  void check() const;
};

// y[t] = residual[t] + x[places[t,0]] + x[places[t,1]] + ..., in this order, in fp32; negative places add nothing.
// x [R,H], places i32 [T,K], y [T,H]; dense.
struct UnpermuteArgs {
  Tensor x, places, y;
  Tensor residual;  // [T,H], optional; may be y
  void check() const;
};

}  // namespace tera
