#pragma once
// A router of a mixture of experts: which experts a row goes to and with what weights, and the losses that keep experts
// evenly used. docs/numerics.md has the formulas.

#include "tera/base/kinds.h"
#include "tera/tensor/tensor.h"

namespace tera {

// What kernels have room for.
inline constexpr std::int64_t most_experts = 512, most_topk = 32;

struct RouterRule {
  ScoreFunction score = ScoreFunction::softmax;
  std::int64_t topk = 1;
  bool renormalize = true;  // the weights of the chosen are divided by their sum (sigmoid: sum + 1e-20)
  float scale = 1;          // then multiplied by this
  // Experts are chosen among those of the group_topk best of `groups` equal groups of consecutive experts. A group's
  // score is the sum of so many of its best scores (2: DeepSeek-V3, 1: V2).
  std::int64_t groups = 1, group_topk = 1, group_best = 2;
  // Benchmarks: choice k of a row is expert (row id * K + k) mod E, whatever the scores say; weights are of its scores.
  bool force_balance = false;

  bool uses_groups() const { return group_topk < groups; }
  void check(std::string_view op, std::int64_t experts) const;
};

// Which part of the batch (a sequence, say) a row belongs to: row t to part (first_row + t) / part_rows.
struct RowParts {
  std::int64_t rows = 0, part_rows = 0, first_row = 0;  // part_rows 0: all rows are of part 0

  std::int64_t part_of(std::int64_t row) const { return part_rows == 0 ? 0 : (first_row + row) / part_rows; }
  std::int64_t first() const { return part_of(0); }  // of the parts with rows here, which are neighbours
  std::int64_t count() const { return rows == 0 ? 0 : part_of(rows - 1) - first() + 1; }
  std::int64_t begin(std::int64_t part) const;  // rows of a part that are here: begin to end
  std::int64_t end(std::int64_t part) const { return begin(part + 1); }
};

// The rows cut into blocks that lie inside of a part each, for sums: block b is of part first() + b / per_part(). The
// blocks at the end of a part may be empty.
struct PartBlocks {
  RowParts parts;
  std::int64_t size = 1;  // rows of a block

  std::int64_t per_part() const;
  std::int64_t count() const { return parts.count() * per_part(); }
  std::int64_t begin(std::int64_t block) const;
  std::int64_t end(std::int64_t block) const;
};

// Equal scores: the lower number is better. For the choice NaN is better than any number, so a broken row has weights
// of NaN (with softmax, a logit of +inf breaks a row, too); the experts are different valid numbers in any case.
struct RouteArgs {
  Tensor logits;                              // f32 [T,E]
  Tensor bias = {};                           // f32 [E], optional: added to the scores for the choice alone
  Tensor rows = {};                           // i64 [T], row ids that are not negative; for force_balance only
  Tensor experts, weights;                    // i32, f32 [T,K], best first
  Tensor counts = {};                         // i32 [P,E], optional: how many rows of part p chose e
  Tensor score_sums = {};                     // f32 [P,E], optional: sums over these rows of the normalised scores
  Tensor z_sum = {};                          // f32 [1], optional: sum over all rows of logsumexp(logits)^2
  std::int64_t part_rows = 0, first_row = 0;  // RowParts; parts without rows here get zeros
  RouterRule rule;

  RowParts parts() const { return {logits.dim(0), part_rows, first_row}; }
  bool sums() const { return counts || score_sums || z_sum; }
  void check() const;
};

// dlogits of: sum of dweights * weights, + sum of loads * normalised scores, + z_scale * z_coefficient * sum of
// logsumexp^2. The choice itself has no gradient.
struct RouteBackArgs {
  Tensor logits, experts, dweights;  // as route has them; the experts of a row differ
  Tensor loads = {};                 // f32 [P,E], optional
  Tensor z_scale = {};               // f32 [1], optional
  float z_coefficient = 1;
  Tensor dlogits;                             // f32 [T,E]
  std::int64_t part_rows = 0, first_row = 0;  // RowParts, of loads
  RouterRule rule;

  RowParts parts() const { return {logits.dim(0), part_rows, first_row}; }
  void check() const;
};

// One auxiliary loss: coefficient * E / (K * n^2) * sum over e of score_sums[p,e] * counts[p,e] with n rows in a part,
// and of this the mean over parts. With shares in place of counts: coefficient * E / n * sum of score_sums * shares.
struct BalanceLossArgs {
  Tensor counts = {};  // i32 [P,E], or none
  Tensor shares = {};  // f32 [P,E]: of all choices of a part's rows, those of an expert; or none
  Tensor score_sums;   // f32 [P,E]
  Tensor scale;        // f32 [1]: what the loss counts in the gradient
  Tensor loads;        // f32 [P,E]: (+)= scale * d loss / d score
  Tensor loss;         // f32 [1]: += the loss, without scale
  double coefficient = 0;
  std::int64_t topk = 1, rows = 0;  // K, n
  bool accumulate = false;          // of loads

  double load_of_count() const;  // d loss / d score of an expert that one row chose
  double load_of_share() const;  // of an expert that all rows chose
  void check() const;
};

// What the choices of a step lead to: bias += rate * sign(mean(counts) - counts), unless grad_factor says that the step
// is skipped as optimizers skip it; and shares = counts / sum(counts), or zeros where nothing was counted.
struct ExpertBiasArgs {
  Tensor counts;            // i32 [E]
  Tensor bias = {};         // f32 [E], optional
  float rate = 0;           // of the bias
  Tensor shares = {};       // f32 [E], optional
  Tensor grad_factor = {};  // f32 [1], optional: not finite, and the bias stays
  void check() const;
};

}  // namespace tera
