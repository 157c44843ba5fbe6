#pragma once
// The top-k router of a mixture of experts, its load-balancing auxiliary losses and its z-loss. docs/numerics.md has
// the formulas.

#include "tera/base/kinds.h"
#include "tera/ops/op_list.h"
#include "tera/tensor/tensor.h"

namespace tera {

// Limits of the kernels.
inline constexpr std::int64_t max_router_experts = 512, max_topk = 32;

struct RouterRule {
  ScoreFunction score = ScoreFunction::softmax;
  std::int64_t topk = 1;
  bool renormalize = true;  // the weights of the chosen are divided by their sum (sigmoid: sum + 1e-20)
  float scale = 1;          // then multiplied by this
  // Group-limited routing: experts are chosen among those of the group_topk best of `groups` equal groups of
  // consecutive experts. A group's score is the sum of its group_best best scores (2: DeepSeek-V3, 1: V2).
  std::int64_t groups = 1, group_topk = 1, group_best = 2;
  // Benchmarks: choice k of a row is expert (row id * K + k) mod E, whatever the scores say; weights are of its scores.
  bool force_balance = false;

  bool uses_groups() const { return group_topk < groups; }
  void check(std::string_view op, std::int64_t experts) const;
};

// The parts of the batch (sequences, say) over which auxiliary losses are computed: row t is of part
// (first_row + t) / part_rows.
struct RowParts {
  std::int64_t rows = 0, part_rows = 0, first_row = 0;  // part_rows 0: all rows are of part 0

  std::int64_t part_of(std::int64_t row) const { return part_rows == 0 ? 0 : (first_row + row) / part_rows; }
  std::int64_t first() const { return part_of(0); }  // the first part with rows here; these are consecutive
  std::int64_t count() const { return rows == 0 ? 0 : part_of(rows - 1) - first() + 1; }
  std::int64_t begin(std::int64_t part) const;  // the rows of a part that are here: begin to end
  std::int64_t end(std::int64_t part) const { return begin(part + 1); }
};

// Blocks of rows for partial sums, each inside of one part: block b is of part first() + b / per_part(). The last
// blocks of a part may be empty.
struct PartBlocks {
  RowParts parts;
  std::int64_t size = 1;  // rows of a block

  std::int64_t per_part() const;
  std::int64_t count() const { return parts.count() * per_part(); }
  std::int64_t begin(std::int64_t block) const;
  std::int64_t end(std::int64_t block) const;
};

// Top-k with ties to the lower expert. For the choice NaN is larger than any number, so a row with NaN has weights of
// NaN (with softmax, a logit of +inf has that effect, too); the chosen experts are distinct valid numbers in any case.
struct RouteArgs {
  Tensor logits;                              // f32 [T,E]
  Tensor bias = {};                           // f32 [E], optional: added to the scores for the choice alone
  Tensor rows = {};                           // i64 [T], row ids that are not negative; for force_balance only
  Tensor experts, weights;                    // i32, f32 [T,K], best first
  Tensor counts = {};                         // i32 [P,E], optional: how many rows of part p chose e
  Tensor score_sums = {};                     // f32 [P,E], optional: sums over these rows of the normalised scores
  Tensor z_sum = {};                          // f32 [1], optional: sum over all rows of logsumexp(logits)^2
  std::int64_t part_rows = 0, first_row = 0;  // as in RowParts; parts without rows here get zeros
  RouterRule rule;

  RowParts parts() const { return {logits.dim(0), part_rows, first_row}; }
  bool sums() const { return counts || score_sums || z_sum; }
  void check() const;
};

// dlogits of: sum of dweights * weights, + sum of loads * normalised scores, + z_scale * z_coefficient * sum of
// logsumexp^2. The choice itself has no gradient.
struct RouteBackArgs {
  Tensor logits, experts, dweights;  // shapes as in RouteArgs; the experts of a row are distinct
  Tensor loads = {};                 // f32 [P,E], optional
  Tensor z_scale = {};               // f32 [1], optional
  float z_coefficient = 1;
  Tensor dlogits;                             // f32 [T,E]
  std::int64_t part_rows = 0, first_row = 0;  // as in RowParts, for loads
  RouterRule rule;

  RowParts parts() const { return {logits.dim(0), part_rows, first_row}; }
  void check() const;
};

// A load-balancing loss: coefficient * E / (K * n^2) * sum over e of score_sums[p,e] * counts[p,e] with n rows in a
// part, averaged over parts. With shares in place of counts: coefficient * E / n * sum of score_sums * shares.
struct BalanceLossArgs {
  Tensor counts = {};  // i32 [P,E], or none
  Tensor shares = {};  // f32 [P,E]: an expert's fraction of all choices of a part's rows; or none
  Tensor score_sums;   // f32 [P,E]
  Tensor scale;        // f32 [1]: factor of the loss in the gradient
  Tensor loads;        // f32 [P,E]: (+)= scale * d loss / d score
  Tensor loss;         // f32 [1]: += the loss, without scale
  double coefficient = 0;
  std::int64_t topk = 1, rows = 0;  // K, n
  bool accumulate = false;          // adds to loads

  double load_of_count() const;  // d loss / d score of an expert that one row chose
  double load_of_share() const;  // d loss / d score of an expert that all rows chose
  void check() const;
};

// The update of the expert bias (aux-loss-free balancing): bias += rate * sign(mean(counts) - counts), unless
// grad_factor makes the optimizer skip the step; and shares = counts / sum(counts), or zeros where that sum is zero.
struct ExpertBiasArgs {
  Tensor counts;            // i32 [E]
  Tensor bias = {};         // f32 [E], optional
  float rate = 0;           // update rate of the bias
  Tensor shares = {};       // f32 [E], optional
  Tensor grad_factor = {};  // f32 [1], optional: where it is not finite, the bias stays
  void check() const;

  static constexpr OpKind op_kind = OpKind::optimizer;
};

}  // namespace tera
