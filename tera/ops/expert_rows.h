#pragma once
// Rows on their way to experts and back. Each of T tokens chose K experts; a choice is named by t*K + k. An expert's
// rows lie together, in the order of their choices. How many there are is known on the device alone.

#include "tera/tensor/tensor.h"

namespace tera {

// In sources, of rows that are no choice's.
inline constexpr std::int32_t padding_row = -1;     // inside a group: zeros
inline constexpr std::int32_t row_behind_all = -2;  // behind the last group: left alone

// Which rows go to which of the G experts first_expert and up. All dense.
struct GroupRowsArgs {
  static constexpr std::int64_t most_experts = 1024;  // G

  Tensor experts;  // i32 [T,K]; those of others, negative ones among them, are left out
  std::int64_t first_expert = 0;
  Tensor offsets;  // i32 [G+1]: the rows of expert g are offsets[g] .. offsets[g+1]
  Tensor sources;  // i32 [R]: the choice of each row, or one of the above
  Tensor places;   // i32 [T,K]: the row of each choice, or -1: it has none here
  // 0: every expert has the rows that it was chosen for, as far as R goes. Else each has exactly so many: padded, or
  // without the choices that are too many.
  std::int64_t capacity = 0;
  // f32 [T,K], optional, with capacity: the largest stay, of equal ones the earlier, a NaN last. None: the first stay.
  Tensor weights;
  Tensor overflow;  // i32 [1], optional: choices of these experts that got no row

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
