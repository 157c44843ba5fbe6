// The checks of the argument structs, in one place for all backends and the plan.

#include <algorithm>
#include <limits>

#include "tera/base/error.h"
#include "tera/ops/all_ops.h"
#include "tera/ops/check.h"
#include "tera/ops/ops.h"
#include "tera/ops/workspace.h"

namespace tera {
namespace {

using check::dense, check::dense_rows, check::dtype, check::float_dtype, check::same_shape, check::that;

void float_like(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& like) {
  dtype(op, name, tensor, like.dtype);
  same_shape(op, name, tensor, like.shape);
}

// The shape of one value per normalised vector: x without its last dim.
Shape without_last(Shape shape) {
  shape.dim[static_cast<std::size_t>(--shape.rank)] = 0;
  return shape;
}

}  // namespace

void GemmArgs::check() const {
  constexpr auto op = "gemm";
  float_dtype(op, "a", a);
  dtype(op, "b", b, a.dtype);
  float_dtype(op, "out", out);
  that(a.shape.rank == 2 && b.shape.rank == 2 && out.shape.rank == 2, op, "a, b and out have two dims");
  for (const auto& [name, tensor] : {std::pair{"a", &a}, {"b", &b}, {"out", &out}}) dense_rows(op, name, *tensor);
  that(out.dtype == a.dtype || out.dtype == DType::f32, op, "out has the dtype of a, or f32");
  same_shape(op, "a", a, trans_a ? shape(k(), m()) : shape(m(), k()));
  same_shape(op, "b", b, trans_b ? shape(n(), k()) : shape(k(), n()));
  that(!accumulate || (!bias && !residual), op, "accumulate excludes bias and residual");
  if (bias) {
    same_shape(op, "bias", bias, shape(n()));
    dense(op, "bias", bias);
    that(bias.dtype == a.dtype || bias.dtype == out.dtype, op, "bias has the dtype of a or out");
  }
  if (residual) {
    same_shape(op, "residual", residual, out.shape);
    dense_rows(op, "residual", residual);
    that(residual.dtype == a.dtype || residual.dtype == out.dtype, op, "residual has the dtype of a or out");
  }
}

void ColumnSumArgs::check() const {
  constexpr auto op = "column_sum";
  float_dtype(op, "x", x);
  that(x.shape.rank == 2, op, "x has two dims");
  dense_rows(op, "x", x);
  dtype(op, "out", out, DType::f32);
  same_shape(op, "out", out, shape(x.dim(1)));
  dense(op, "out", out);
}

void NormArgs::check() const {
  constexpr auto op = "norm";
  float_dtype(op, "x", x);
  that(x.shape.rank == 2 || x.shape.rank == 3, op, "x has two or three dims");
  dense_rows(op, "x", x);
  float_like(op, "y", y, x);
  dense_rows(op, "y", y);
  dtype(op, "weight", weight, x.dtype);
  same_shape(op, "weight", weight, shape(x.shape.last()));
  dtype(op, "rstd", rstd, DType::f32);
  same_shape(op, "rstd", rstd, without_last(x.shape));
  dense(op, "rstd", rstd);
  const bool layer = kind == NormKind::layer_norm;
  that(layer == static_cast<bool>(mean) && layer == static_cast<bool>(bias), op,
       "layer_norm, and only it, has mean and bias");
  if (layer) {
    dtype(op, "mean", mean, DType::f32);
    same_shape(op, "mean", mean, rstd.shape);
    dense(op, "mean", mean);
    dtype(op, "bias", bias, x.dtype);
    same_shape(op, "bias", bias, weight.shape);
  }
  that(eps > 0, op, "eps is positive");
}

void NormBackArgs::check() const {
  constexpr auto op = "norm_back";
  float_dtype(op, "x", x);
  that(x.shape.rank == 2 || x.shape.rank == 3, op, "x has two or three dims");
  for (const auto& [name, tensor] : {std::pair{"dy", &dy}, {"dx", &dx}}) float_like(op, name, *tensor, x);
  for (const auto& [name, tensor] : {std::pair{"x", &x}, {"dy", &dy}, {"dx", &dx}}) dense_rows(op, name, *tensor);
  dtype(op, "weight", weight, x.dtype);
  same_shape(op, "weight", weight, shape(x.shape.last()));
  dtype(op, "rstd", rstd, DType::f32);
  same_shape(op, "rstd", rstd, without_last(x.shape));
  dense(op, "rstd", rstd);
  that((kind == NormKind::layer_norm) == static_cast<bool>(mean), op, "layer_norm, and only it, has a mean");
  if (mean) {
    same_shape(op, "mean", mean, rstd.shape);
    dense(op, "mean", mean);
  }
  if (residual) {
    float_like(op, "residual", residual, x);
    dense_rows(op, "residual", residual);
  }
  for (const auto& [name, tensor] : {std::pair{"dweight", &dweight}, {"dbias", &dbias}}) {
    if (!*tensor) continue;
    dtype(op, name, *tensor, DType::f32);
    same_shape(op, name, *tensor, weight.shape);
  }
  that(!dbias || kind == NormKind::layer_norm, op, "only layer_norm has a bias");
}

void RopeArgs::check() const {
  constexpr auto op = "rope";
  float_dtype(op, "x", x);
  that(x.shape.rank == 3, op, "x has three dims");
  dense_rows(op, "x", x);
  dtype(op, "positions", positions, DType::i32);
  same_shape(op, "positions", positions, shape(x.dim(0)));
  dtype(op, "cos", cos, DType::f32);
  dtype(op, "sin", sin, DType::f32);
  that(cos.shape.rank == 2, op, "cos has two dims");
  same_shape(op, "sin", sin, cos.shape);
  that(cos.dense() && sin.dense(), op, "cos and sin are dense");
  that(first >= 0 && first + 2 * cos.dim(1) <= x.dim(2), op, "no more channels rotate than a head has");
}

namespace {

// Checks k and v, or their gradients, against kv and rotary.
void check_latent_heads(std::string_view op, const Tensor& kv, const Tensor& rotary, const Tensor& k, const Tensor& v) {
  float_dtype(op, "k", k);
  that(k.shape.rank == 3 && kv.shape.rank == 3 && rotary.shape.rank == 2, op,
       "kv, k and v have three dims, rotary has two");
  dtype(op, "kv", kv, k.dtype);
  dtype(op, "rotary", rotary, k.dtype);
  float_like(op, "v", v, k);
  for (const auto& [name, tensor] : {std::pair{"kv", &kv}, {"k", &k}, {"v", &v}}) dense(op, name, *tensor);
  dense_rows(op, "rotary", rotary);
  that(kv.dim(0) == k.dim(0) && kv.dim(1) == k.dim(1) && rotary.dim(0) == k.dim(0), op,
       "kv, rotary and k have the same rows and heads");
  const std::int64_t unrotated = k.dim(2) - rotary.dim(1), values = kv.dim(2) - unrotated;
  that(unrotated >= 0 && values >= 0 && values <= k.dim(2), op, "keys fit into kv and k, values into v");
}

}  // namespace

void LatentHeadsArgs::check() const { check_latent_heads("latent_heads", kv, rotary, k, v); }

void LatentHeadsBackArgs::check() const { check_latent_heads("latent_heads_back", dkv, drotary, dk, dv); }

namespace {

void check_attention_inputs(std::string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse) {
  float_dtype(op, "q", q);
  that(q.shape.rank == 3 && k.shape.rank == 3, op, "q, k and v have three dims");
  dtype(op, "k", k, q.dtype);
  float_like(op, "v", v, k);
  for (const auto& [name, tensor] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) dense_rows(op, name, *tensor);
  that(q.dim(2) == k.dim(2), op, "q and k have heads of one size");
  that(k.dim(1) > 0 && q.dim(1) % k.dim(1) == 0, op, "kv heads divide query heads");
  dtype(op, "lse", lse, DType::f32);
  same_shape(op, "lse", lse, shape(q.dim(1), q.dim(0)));
  dense(op, "lse", lse);
}

void check_attention_shape(std::string_view op, const AttentionShape& s, const Tensor& q, const Tensor& k) {
  that(static_cast<bool>(s.q_offsets) == static_cast<bool>(s.k_offsets), op,
       "q_offsets and k_offsets are given together");
  if (s.q_offsets) {
    dtype(op, "q_offsets", s.q_offsets, DType::i32);
    dtype(op, "k_offsets", s.k_offsets, DType::i32);
    that(s.q_offsets.shape.rank == 1 && s.q_offsets.dim(0) >= 2, op, "offsets have one dim of at least two");
    same_shape(op, "k_offsets", s.k_offsets, s.q_offsets.shape);
  } else {
    that(s.batch > 0 && q.dim(0) % s.batch == 0 && k.dim(0) % s.batch == 0, op, "batch divides the rows of q and k");
  }
  that(s.scale > 0, op, "scale is positive");
  that(s.values >= 0 && s.values <= q.dim(2), op, "values have no more channels than heads");
  that(s.window >= 0 && (s.window == 0 || s.mask == Mask::causal), op, "a window needs the causal mask");
  that(static_cast<bool>(s.q_positions) == static_cast<bool>(s.k_positions), op,
       "q_positions and k_positions are given together");
  if (s.q_positions) {
    that(s.mask == Mask::causal, op, "positions need the causal mask");
    for (const auto& [name, positions, rows] :
         {std::tuple{"q_positions", &s.q_positions, q.dim(0)}, {"k_positions", &s.k_positions, k.dim(0)}}) {
      dtype(op, name, *positions, DType::i32);
      same_shape(op, name, *positions, shape(rows));
      dense(op, name, *positions);
    }
  }
  that(s.dropout >= 0 && s.dropout < 1, op, "dropout is in [0,1)");
  if (s.dropout > 0) {
    dtype(op, "q_rows", s.q_rows, DType::i64);
    dtype(op, "k_rows", s.k_rows, DType::i64);
    same_shape(op, "q_rows", s.q_rows, shape(q.dim(0)));
    same_shape(op, "k_rows", s.k_rows, shape(k.dim(0)));
  }
}

}  // namespace

void AttentionArgs::check() const {
  constexpr auto op = "attention";
  check_attention_inputs(op, q, k, v, lse);
  float_like(op, "out", out, q);
  dense_rows(op, "out", out);
  check_attention_shape(op, shape, q, k);
}

void AttentionBackArgs::check() const {
  constexpr auto op = "attention_back";
  check_attention_inputs(op, q, k, v, lse);
  for (const auto& [name, tensor] : {std::pair{"out", &out}, {"dout", &dout}, {"dq", &dq}})
    float_like(op, name, *tensor, q);
  for (const auto& [name, tensor] : {std::pair{"dk", &dk}, {"dv", &dv}}) float_like(op, name, *tensor, k);
  for (const auto& [name, tensor] : {std::pair{"out", &out}, {"dout", &dout}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}})
    dense_rows(op, name, *tensor);
  check_attention_shape(op, shape, q, k);
}

void MergeAttentionArgs::check() const {
  constexpr auto op = "merge_attention";
  float_dtype(op, "part", part);
  that(part.shape.rank == 3, op, "part has three dims");
  dtype(op, "out", out, DType::f32);
  same_shape(op, "out", out, part.shape);
  for (const auto& [name, tensor] : {std::pair{"part", &part}, {"out", &out}}) dense_rows(op, name, *tensor);
  for (const auto& [name, tensor] : {std::pair{"part_lse", &part_lse}, {"lse", &lse}}) {
    dtype(op, name, *tensor, DType::f32);
    same_shape(op, name, *tensor, shape(part.dim(1), part.dim(0)));
    dense_rows(op, name, *tensor);
  }
}

void ActivationArgs::check() const {
  constexpr auto op = "activation";
  float_dtype(op, "x", x);
  dtype(op, "y", y, x.dtype);
  that(x.shape.rank == 2, op, "x has two dims");
  that(!is_gated(kind) || x.dim(1) % 2 == 0, op, "a gated activation takes an even number of columns");
  same_shape(op, "y", y, shape(x.dim(0), is_gated(kind) ? x.dim(1) / 2 : x.dim(1)));
  dense(op, "x", x);
  dense(op, "y", y);
  that(static_cast<bool>(weights) == static_cast<bool>(sources), op, "weights and sources are given together");
  if (!weights) return;
  dtype(op, "weights", weights, DType::f32);
  that(weights.shape.rank == 2, op, "weights have two dims");
  dense(op, "weights", weights);
  dtype(op, "sources", sources, DType::i32);
  same_shape(op, "sources", sources, shape(x.dim(0)));
  dense(op, "sources", sources);
}

void ActivationBackArgs::check() const {
  constexpr auto op = "activation_back";
  ActivationArgs{.kind = kind, .x = x, .y = dy, .weights = weights, .sources = sources}.check();
  float_like(op, "dx", dx, x);
  dense(op, "dx", dx);
  that(static_cast<bool>(weights) == static_cast<bool>(dweights), op, "weights and their gradient are given together");
  if (!weights) return;
  float_like(op, "dweights", dweights, weights);
  dense(op, "dweights", dweights);
}

void GemmActivationArgs::check() const {
  gemm.check();
  activation.check();
  that(activation.x.data == gemm.out.data, "gemm_activation", "the activation is of the product's output");
  same_shape("gemm_activation", "the activation's x", activation.x, gemm.out.shape);
}

void GemmActivationBackArgs::check() const {
  gemm.check();
  activation.check();
  that(activation.dy.data == gemm.out.data, "gemm_activation_back", "dy is the product's output");
  same_shape("gemm_activation_back", "dy", activation.dy, gemm.out.shape);
}

void DropoutArgs::check() const {
  constexpr auto op = "dropout";
  float_dtype(op, "x", x);
  that(x.shape.rank == 2, op, "x has two dims");
  float_like(op, "y", y, x);
  dense(op, "x", x);
  dense(op, "y", y);
  if (residual) {
    float_like(op, "residual", residual, x);
    dense(op, "residual", residual);
  }
  dtype(op, "rows", rows, DType::i64);
  same_shape(op, "rows", rows, shape(x.dim(0)));
  that(rate >= 0 && rate < 1, op, "rate is in [0,1)");
}

namespace {

void check_ids(std::string_view op, std::int64_t first, const Tensor& table) {
  constexpr std::int64_t max_rows = std::int64_t{1} << 31;
  that(first >= 0 && table.dim(0) <= max_rows - first, op, "first is not negative, and ids of all rows fit 32 bits");
}

}  // namespace

void EmbeddingArgs::check() const {
  constexpr auto op = "embedding";
  dtype(op, "tokens", tokens, DType::i32);
  that(tokens.shape.rank == 1, op, "tokens has one dim");
  float_dtype(op, "table", table);
  that(table.shape.rank == 2, op, "table has two dims");
  check_ids(op, first, table);
  dtype(op, "y", y, table.dtype);
  same_shape(op, "y", y, shape(tokens.dim(0), table.dim(1)));
  dense(op, "table", table);
  dense(op, "y", y);
  that(static_cast<bool>(positions) == static_cast<bool>(position_table), op,
       "positions and their table are given together");
  if (!positions) return;
  dtype(op, "positions", positions, DType::i32);
  same_shape(op, "positions", positions, tokens.shape);
  dtype(op, "position_table", position_table, table.dtype);
  that(position_table.shape.rank == 2 && position_table.dim(1) == table.dim(1), op, "position_table is [P,H]");
  dense(op, "position_table", position_table);
}

void EmbeddingBackArgs::check() const {
  constexpr auto op = "embedding_back";
  dtype(op, "ids", ids, DType::i32);
  float_dtype(op, "dy", dy);
  dtype(op, "dtable", dtable, DType::f32);
  that(ids.shape.rank == 1 && dtable.shape.rank == 2, op, "ids has one dim, dtable two");
  check_ids(op, first, dtable);
  same_shape(op, "dy", dy, shape(ids.dim(0), dtable.dim(1)));
  dense(op, "dy", dy);
  dense(op, "dtable", dtable);
}

namespace {

void check_logits(std::string_view op, const Tensor& logits, const Tensor& targets) {
  float_dtype(op, "logits", logits);
  that(logits.shape.rank == 2, op, "logits has two dims");
  dense(op, "logits", logits);
  dtype(op, "targets", targets, DType::i32);
  same_shape(op, "targets", targets, shape(logits.dim(0)));
}

std::int64_t columns_below(std::int64_t vocab, std::int64_t first, const Tensor& logits) {
  return std::clamp<std::int64_t>(vocab - first, 0, logits.dim(1));
}

}  // namespace

std::int64_t CrossEntropyArgs::used_columns() const { return columns_below(vocab, first, logits); }
std::int64_t CrossEntropyStatsArgs::used_columns() const { return columns_below(vocab, first, logits); }

void CrossEntropyStatsArgs::check() const {
  constexpr auto op = "cross_entropy_stats";
  check_logits(op, logits, targets);
  dtype(op, "stats", stats, DType::f32);
  same_shape(op, "stats", stats, shape(logits.dim(0), 3));
  dense(op, "stats", stats);
  that(vocab > 0 && first >= 0, op, "vocab is at least 1, and first is not negative");
}

void CrossEntropyArgs::check() const {
  constexpr auto op = "cross_entropy";
  check_logits(op, logits, targets);
  dtype(op, "token_loss", token_loss, DType::f32);
  same_shape(op, "token_loss", token_loss, targets.shape);
  if (stats) {
    dtype(op, "stats", stats, DType::f32);
    same_shape(op, "stats", stats, shape(stats.dim(0), logits.dim(0), 3));
    dense(op, "stats", stats);
    that(stats.dim(0) > 0, op, "stats are of one part at least");
    that(vocab > 0 && first >= 0, op, "vocab is at least 1, and first is not negative");
  } else {
    that(vocab > 0 && vocab <= logits.dim(1), op, "vocab is in 1..V without stats of other parts");
    that(first == 0, op, "first is 0 without stats of other parts");
  }
  if (loss_only) return;
  dtype(op, "scale", scale, DType::f32);
  same_shape(op, "scale", scale, shape(1));
}

void SumArgs::check() const {
  dtype("sum", "x", x, DType::f32);
  dense("sum", "x", x);
  dtype("sum", "out", out, DType::f64);
  same_shape("sum", "out", out, shape(1));
}

void SumSquaresArgs::check() const {
  dtype("sum_squares", "x", x, DType::f32);
  dense("sum_squares", "x", x);
  dtype("sum_squares", "out", out, DType::f64);
  same_shape("sum_squares", "out", out, shape(1));
}

namespace {

void check_state(std::string_view op, const Tensor& state) {
  dtype(op, "state", state, DType::f64);
  same_shape(op, "state", state, shape(static_cast<int>(ScaleState::count)));
}

}  // namespace

void ScaleLossArgs::check() const {
  constexpr auto op = "scale_loss";
  dtype(op, "x", x, DType::f32);
  that(x.shape.rank == 1, op, "x has one dim");
  dense(op, "x", x);
  dtype(op, "out", out, DType::f32);
  same_shape(op, "out", out, x.shape);
  dense(op, "out", out);
  check_state(op, state);
}

void CountStepArgs::check() const {
  constexpr auto op = "count_step";
  check_state(op, state);
  dtype(op, "scalars", scalars, DType::f32);
  same_shape(op, "scalars", scalars, shape(static_cast<int>(StepScalar::count)));
  dtype(op, "rates", rates, DType::f32);
  same_shape(op, "rates", rates, shape(2));
  that(rule.min_scale > 0 && rule.window > 0 && rule.hysteresis > 0, op,
       "min_scale, window and hysteresis are positive");
}

void ClipArgs::check() const {
  constexpr auto op = "clip";
  dtype(op, "sums", sums, DType::f64);
  that(sums.shape.rank == 1, op, "sums has one dim");
  dense(op, "sums", sums);
  for (const auto& [name, tensor] : {std::pair{"norm", &norm}, {"factor", &factor}}) {
    dtype(op, name, *tensor, DType::f32);
    same_shape(op, name, *tensor, shape(1));
  }
  if (state) check_state(op, state);
  that(max_norm >= 0, op, "max_norm is not negative");
}

namespace {

void check_update(std::string_view op, const Tensor& weight, const Tensor& copy, const Tensor& scalars) {
  dtype(op, "weight", weight, DType::f32);
  dense(op, "weight", weight);
  if (copy) {
    float_dtype(op, "copy", copy);
    same_shape(op, "copy", copy, weight.shape);
    dense(op, "copy", copy);
  }
  dtype(op, "scalars", scalars, DType::f32);
  same_shape(op, "scalars", scalars, shape(static_cast<int>(StepScalar::count)));
}

}  // namespace

void AdamArgs::check() const {
  check_update("adam", weight, copy, scalars);
  float_like("adam", "grad", grad, weight);
  dense("adam", "grad", grad);
  for (const auto& [name, tensor] : {std::pair{"m", &m}, {"v", &v}}) {
    float_dtype("adam", name, *tensor);
    same_shape("adam", name, *tensor, weight.shape);
    that(tensor->dtype != DType::f16, "adam", "moments are f32 or bf16");
    dense("adam", name, *tensor);
  }
}

void SgdArgs::check() const {
  check_update("sgd", weight, copy, scalars);
  float_like("sgd", "grad", grad, weight);
  dense("sgd", "grad", grad);
  that(momentum == 0 || momentum_buffer, "sgd", "momentum needs a buffer");
  if (momentum_buffer) float_like("sgd", "momentum_buffer", momentum_buffer, weight);
}

void CopyArgs::check() const {
  constexpr auto op = "copy";
  check::present(op, "src", src);
  same_shape(op, "dst", dst, src.shape);
  that(src.dtype == dst.dtype || (is_float(src.dtype) && is_float(dst.dtype)), op, "only float dtypes are converted");
  that(src.shape.rank >= 1 && src.stride.last() == 1 && dst.stride.last() == 1, op, "the last dim is dense");
}

void HostCopyArgs::check() const {
  constexpr auto op = "host copy";
  dense(op, "tensor", tensor);
  that(host.size() == tensor.bytes(), op, "the host has as many bytes as the tensor");
}

void FillArgs::check() const { dense("fill", "out", out); }

void NormalArgs::check() const {
  float_dtype("normal", "out", out);
  dense("normal", "out", out);
  that(first >= 0, "normal", "first is not negative");
  that(row_stride == 0 || (out.shape.rank > 0 && row_stride >= out.shape.last()), "normal",
       "row_stride is 0 or at least a row of out");
}

void CombineArgs::check() const {
  constexpr auto op = "combine";
  that(!sources.empty() && sources.size() <= max_sources, op, "there are 1 to 256 sources");
  dense(op, "out", out);
  that(can_combine(out.dtype, how), op, "the dtype is not u8, and integers have no mean");
  for (const Tensor& source : sources) {
    dtype(op, "source", source, out.dtype);
    same_shape(op, "source", source, out.shape);
    dense(op, "source", source);
  }
}

void Ops::operator()(const GemmActivationArgs& args) {
  args.check();
  if (fuses(args)) return execute(args);
  execute(args.gemm);
  execute(args.activation);
}
void Ops::operator()(const GemmActivationBackArgs& args) {
  args.check();
  if (fuses(args)) return execute(args);
  execute(args.gemm);
  execute(args.activation);
}

void Ops::finish(Ticket ticket) {
  if (ticket.timeline) ticket.timeline->finish(ticket.id);
}

void Ops::wait(Ticket ticket) {
  if (ticket.timeline != this) finish(ticket);
}

CopyPoints Ops::to_host_overlapped(const HostCopyArgs& args) {
  args.check();
  return do_to_host_overlapped(args);
}

CopyPoints Ops::from_host_overlapped(const HostCopyArgs& args) {
  args.check();
  return do_from_host_overlapped(args);
}

CopyPoints Ops::do_to_host_overlapped(const HostCopyArgs& args) {
  wait(args.after);
  wait(args.and_after);
  const Ticket begin = record();
  do_to_host(args.tensor, args.host);
  return {begin, record()};
}

CopyPoints Ops::do_from_host_overlapped(const HostCopyArgs& args) {
  wait(args.after);
  wait(args.and_after);
  const Ticket begin = record();
  do_from_host(args.host, args.tensor);
  return {begin, record()};
}

void Ops::from_host(std::span<const std::byte> host, const Tensor& tensor) {
  dense("from_host", "tensor", tensor);
  if (host.size() != tensor.bytes()) fail("from_host: {} bytes for {}", host.size(), to_string(tensor));
  do_from_host(host, tensor);
}

void Ops::to_host_later(const Tensor& tensor, std::span<std::byte> host) {
  dense("to_host_later", "tensor", tensor);
  if (host.size() != tensor.bytes()) fail("to_host_later: {} bytes for {}", host.size(), to_string(tensor));
  do_to_host_later(tensor, host);
}

void Ops::to_host(const Tensor& tensor, std::span<std::byte> host) {
  dense("to_host", "tensor", tensor);
  if (host.size() != tensor.bytes()) fail("to_host: {} bytes for {}", host.size(), to_string(tensor));
  do_to_host(tensor, host);
}

std::size_t WorkspaceRules::workspace(const GemmActivationArgs& args) const { return workspace(args.gemm); }
std::size_t WorkspaceRules::workspace(const GemmActivationBackArgs& args) const { return workspace(args.gemm); }

}  // namespace tera
