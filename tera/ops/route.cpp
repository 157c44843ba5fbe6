#include "tera/ops/route.h"

#include <algorithm>
#include <cmath>

#include "tera/ops/check.h"

namespace tera {
namespace {

using check::dense, check::dtype, check::same_shape, check::that;

void dense_tensor(std::string_view op, std::string_view name, const Tensor& tensor, DType type, const Shape& wanted) {
  dtype(op, name, tensor, type);
  same_shape(op, name, tensor, wanted);
  dense(op, name, tensor);
}

void check_logits(std::string_view op, const Tensor& logits) {
  dtype(op, "logits", logits, DType::f32);
  that(logits.shape.rank == 2, op, "logits has two dims");
  dense(op, "logits", logits);
}

void check_row_parts(std::string_view op, const RowParts& parts) {
  constexpr std::int64_t max_rows = std::int64_t{1} << 48;  // so that sums of them do not overflow
  that(parts.part_rows >= 0 && parts.part_rows <= max_rows, op, "part_rows is in 0..2^48");
  that(parts.first_row >= 0 && parts.first_row <= max_rows, op, "first_row is in 0..2^48");
}

// Checks a tensor with a value for each part and expert.
void check_part_values(std::string_view op, std::string_view name, const Tensor& tensor, DType type,
                       const Tensor& logits, const RowParts& parts) {
  dtype(op, name, tensor, type);
  that(tensor.shape.rank == 2, op, "counts, score_sums and loads have two dims");
  dense_tensor(op, name, tensor, type, shape(tensor.dim(0), logits.dim(1)));
  that(parts.part_rows > 0 || tensor.dim(0) == 1, op, "without part_rows there is one part");
  that(parts.first() + parts.count() <= tensor.dim(0), op,
       "the rows here belong to parts that counts, score_sums and "
       "loads have");
}

}  // namespace

std::int64_t RowParts::begin(std::int64_t part) const {
  if (part_rows == 0) return part <= 0 ? 0 : rows;
  return std::clamp<std::int64_t>(part * part_rows - first_row, 0, rows);
}

std::int64_t PartBlocks::per_part() const {
  const std::int64_t longest = parts.part_rows == 0 ? parts.rows : std::min(parts.rows, parts.part_rows);
  return (longest + size - 1) / size;
}
std::int64_t PartBlocks::begin(std::int64_t block) const {
  const std::int64_t part = parts.first() + block / per_part();
  return std::min(parts.begin(part) + block % per_part() * size, parts.end(part));
}
std::int64_t PartBlocks::end(std::int64_t block) const {
  return std::min(begin(block) + size, parts.end(parts.first() + block / per_part()));
}

void RouterRule::check(std::string_view op, std::int64_t experts) const {
  that(experts >= 1 && experts <= max_router_experts, op, "there are 1..512 experts");
  that(topk >= 1 && topk <= std::min(experts, max_topk), op, "topk is in 1..32 and not above the number of experts");
  that(scale > 0 && std::isfinite(scale), op, "scale is positive");
  that(groups >= 1 && experts % groups == 0, op, "groups divide the experts");
  that(group_topk >= 1 && group_topk <= groups, op, "group_topk is in 1..groups");
  that(topk <= group_topk * (experts / groups), op, "the chosen groups have topk experts");
  that(!uses_groups() || (group_best >= 1 && group_best <= experts / groups), op,
       "group_best is in 1..experts of a group");
}

void RouteArgs::check() const {
  constexpr auto op = "route";
  check_logits(op, logits);
  rule.check(op, logits.dim(1));
  const Shape choices = shape(logits.dim(0), rule.topk), of_experts = shape(logits.dim(1));
  if (bias) dense_tensor(op, "bias", bias, DType::f32, of_experts);
  if (rule.force_balance) dense_tensor(op, "rows", rows, DType::i64, shape(logits.dim(0)));
  dense_tensor(op, "experts", experts, DType::i32, choices);
  dense_tensor(op, "weights", weights, DType::f32, choices);
  check_row_parts(op, parts());
  if (counts) check_part_values(op, "counts", counts, DType::i32, logits, parts());
  if (score_sums) check_part_values(op, "score_sums", score_sums, DType::f32, logits, parts());
  if (counts && score_sums) same_shape(op, "score_sums", score_sums, counts.shape);
  if (z_sum) dense_tensor(op, "z_sum", z_sum, DType::f32, shape(1));
}

void RouteBackArgs::check() const {
  constexpr auto op = "route_back";
  check_logits(op, logits);
  rule.check(op, logits.dim(1));
  const Shape choices = shape(logits.dim(0), rule.topk);
  dense_tensor(op, "experts", experts, DType::i32, choices);
  dense_tensor(op, "dweights", dweights, DType::f32, choices);
  check_row_parts(op, parts());
  if (loads) check_part_values(op, "loads", loads, DType::f32, logits, parts());
  if (z_scale) dense_tensor(op, "z_scale", z_scale, DType::f32, shape(1));
  dense_tensor(op, "dlogits", dlogits, DType::f32, logits.shape);
}

double BalanceLossArgs::load_of_count() const {
  const auto n = static_cast<double>(rows), parts = static_cast<double>(counts.dim(0));
  return coefficient * static_cast<double>(counts.dim(1)) / (static_cast<double>(topk) * n * n * parts);
}

double BalanceLossArgs::load_of_share() const {
  const auto n = static_cast<double>(rows), parts = static_cast<double>(shares.dim(0));
  return coefficient * static_cast<double>(shares.dim(1)) / (n * parts);
}

void BalanceLossArgs::check() const {
  constexpr auto op = "balance_loss";
  that(static_cast<bool>(counts) != static_cast<bool>(shares), op, "there are either counts or shares");
  const Tensor& used = counts ? counts : shares;
  dtype(op, counts ? "counts" : "shares", used, counts ? DType::i32 : DType::f32);
  that(used.shape.rank == 2 && used.dim(0) >= 1 && used.dim(1) >= 1, op, "counts are of a part and an expert");
  dense(op, counts ? "counts" : "shares", used);
  dense_tensor(op, "score_sums", score_sums, DType::f32, used.shape);
  dense_tensor(op, "scale", scale, DType::f32, shape(1));
  dense_tensor(op, "loads", loads, DType::f32, used.shape);
  dense_tensor(op, "loss", loss, DType::f32, shape(1));
  that(coefficient >= 0 && std::isfinite(coefficient), op, "coefficient is not negative");
  that(topk >= 1 && rows >= 1, op, "topk and rows are positive");
}

void ExpertBiasArgs::check() const {
  constexpr auto op = "expert_bias";
  dtype(op, "counts", counts, DType::i32);
  that(counts.shape.rank == 1, op, "counts has one dim");
  dense(op, "counts", counts);
  that(bias || shares, op, "there is something to change");
  if (bias) dense_tensor(op, "bias", bias, DType::f32, counts.shape);
  if (shares) dense_tensor(op, "shares", shares, DType::f32, counts.shape);
  if (grad_factor) dense_tensor(op, "grad_factor", grad_factor, DType::f32, shape(1));
  that(rate >= 0 && std::isfinite(rate), op, "rate is not negative");
}

}  // namespace tera
