#include "tera/backend/plan/plan_ops.h"

#include <algorithm>

namespace tera {
namespace {

double product_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// Which rows belong to a group is in memory.
template <class Args>
std::int64_t usual_rows(const Args& args) {
  return args.usual_rows > 0 ? args.usual_rows : args.a.dim(0);
}

// Keys seen by the queries that stand in front of key x, when a query at x sees min(x, window) of them: the integral.
double seen_before(double x, double window) {
  if (x <= 0) return 0;
  return x <= window ? x * x / 2 : window * window / 2 + window * (x - window);
}

// Pairs of query and key that meet, in all sequences, as an area: half a square for a causal one.
double attention_pairs(const AttentionShape& shape, const Tensor& q, const Tensor& k) {
  const auto batch = static_cast<double>(shape.batch);  // documents are not longer than sequences
  const double queries = static_cast<double>(q.dim(0)) / batch, keys = static_cast<double>(k.dim(0)) / batch;
  if (shape.mask == Mask::full) return batch * queries * keys;
  const double window = shape.window > 0 ? std::min(static_cast<double>(shape.window), keys) : keys;
  // Queries from front and back of a sequence, as ranks share them: together like those of the whole of it.
  if (shape.q_positions) return batch * seen_before(keys, window) * queries / keys;
  return batch * (seen_before(keys, window) - seen_before(keys - queries, window));
}

// Two products, q k^T and p v, of two flops a pair and channel.
double attention_flops(const AttentionShape& shape, const Tensor& q, const Tensor& k) {
  const std::int64_t channels = q.dim(2) + shape.value_channels(q.dim(2));
  return 2 * attention_pairs(shape, q, k) * static_cast<double>(q.dim(1) * channels);
}

bool alike(const Tensor& a, const Tensor& b) {
  return static_cast<bool>(a) == static_cast<bool>(b) && a.dtype == b.dtype && a.shape == b.shape &&
         a.stride == b.stride;
}
bool alike(const AttentionShape& a, const AttentionShape& b) {
  return a.batch == b.batch && alike(a.q_offsets, b.q_offsets) && alike(a.q_positions, b.q_positions) &&
         a.mask == b.mask && a.window == b.window && a.dropout == b.dropout && a.values == b.values;
}
bool alike(const GemmArgs& a, const GemmArgs& b) {
  return alike(a.a, b.a) && alike(a.b, b.b) && alike(a.out, b.out) && alike(a.bias, b.bias) &&
         alike(a.residual, b.residual) && a.trans_a == b.trans_a && a.trans_b == b.trans_b &&
         a.accumulate == b.accumulate;
}
bool alike(const GemmActivationArgs& a, const GemmActivationArgs& b) {
  return alike(a.product, b.product) && a.activation.kind == b.activation.kind &&
         alike(a.activation.weights, b.activation.weights);
}
bool alike(const GemmActivationBackArgs& a, const GemmActivationBackArgs& b) {
  return alike(a.product, b.product) && a.activation.kind == b.activation.kind &&
         alike(a.activation.weights, b.activation.weights);
}
template <class Args>
bool alike(const Args& a, const Args& b) {  // of attention and its backward: everything else follows
  return alike(a.q, b.q) && alike(a.k, b.k) && alike(a.out, b.out) && alike(a.shape, b.shape);
}

template <class Args>
void keep(std::vector<Args>& kept, const Args& args) {
  if (std::none_of(kept.begin(), kept.end(), [&](const Args& other) { return alike(args, other); }))
    kept.push_back(args);
}

}  // namespace

void PlanOps::note(std::size_t workspace, double flops) {
  workspace_peak_ = std::max(workspace_peak_, workspace);
  flops_ += flops;
  ++calls_;
}

void PlanOps::do_gemm(const GemmArgs& args) {
  keep(planned_calls_.gemms, args);
  note(rules_.gemm(args), product_flops(args.m(), args.n(), args.k()));
}
void PlanOps::do_gemm_activation(const GemmActivationArgs& args) {
  keep(planned_calls_.gemm_activations, args);
  note(rules_.gemm(args.product), product_flops(args.product.m(), args.product.n(), args.product.k()));
}
void PlanOps::do_gemm_activation_back(const GemmActivationBackArgs& args) {
  keep(planned_calls_.gemm_activation_backs, args);
  note(rules_.gemm(args.product), product_flops(args.product.m(), args.product.n(), args.product.k()));
}
void PlanOps::do_grouped_gemm(const GroupedGemmArgs& args) {
  note(rules_.grouped_gemm(args), product_flops(usual_rows(args), args.n(), args.k()));
}
void PlanOps::do_grouped_weight_gradient(const GroupedWeightGradientArgs& args) {
  note(rules_.grouped_weight_gradient(args), product_flops(args.m(), args.n(), usual_rows(args)));
}
void PlanOps::do_attention(const AttentionArgs& args) {
  keep(planned_calls_.attentions, args);
  note(rules_.attention(args), attention_flops(args.shape, args.q, args.k));
}
void PlanOps::do_attention_back(const AttentionBackArgs& args) {
  keep(planned_calls_.attention_backs, args);
  note(rules_.attention_back(args), 2 * attention_flops(args.shape, args.q, args.k));
}
void PlanOps::do_merge_attention(const MergeAttentionArgs&) { note(0, 0); }
void PlanOps::do_column_sum(const ColumnSumArgs& args) { note(rules_.column_sum(args), 0); }
void PlanOps::do_norm_back(const NormBackArgs& args) { note(rules_.norm_back(args), 0); }
void PlanOps::do_sum(const SumArgs& args) { note(rules_.sum(args), 0); }
void PlanOps::do_sum_squares(const SumSquaresArgs& args) { note(rules_.sum_squares(args), 0); }

void PlanOps::do_norm(const NormArgs&) { note(0, 0); }
void PlanOps::do_rope(const RopeArgs&) { note(0, 0); }
void PlanOps::do_latent_heads(const LatentHeadsArgs&) { note(0, 0); }
void PlanOps::do_latent_heads_back(const LatentHeadsBackArgs&) { note(0, 0); }
void PlanOps::do_activation(const ActivationArgs&) { note(0, 0); }
void PlanOps::do_activation_back(const ActivationBackArgs&) { note(0, 0); }
void PlanOps::do_dropout(const DropoutArgs&) { note(0, 0); }
void PlanOps::do_group_rows(const GroupRowsArgs& args) { note(rules_.group_rows(args), 0); }
void PlanOps::do_permute(const PermuteArgs&) { note(0, 0); }
void PlanOps::do_unpermute(const UnpermuteArgs&) { note(0, 0); }
void PlanOps::do_embedding(const EmbeddingArgs&) { note(0, 0); }
void PlanOps::do_embedding_back(const EmbeddingBackArgs& args) { note(rules_.embedding_back(args), 0); }
void PlanOps::do_cross_entropy(const CrossEntropyArgs&) { note(0, 0); }
void PlanOps::do_cross_entropy_stats(const CrossEntropyStatsArgs&) { note(0, 0); }
void PlanOps::do_route(const RouteArgs& args) { note(rules_.route(args), 0); }
void PlanOps::do_route_back(const RouteBackArgs&) { note(0, 0); }
void PlanOps::do_balance_loss(const BalanceLossArgs&) { note(0, 0); }
void PlanOps::do_expert_bias(const ExpertBiasArgs&) { note(0, 0); }
void PlanOps::do_clip(const ClipArgs&) { note(0, 0); }
void PlanOps::do_scale_loss(const ScaleLossArgs&) { note(0, 0); }
void PlanOps::do_count_step(const CountStepArgs&) { note(0, 0); }
void PlanOps::do_adam(const AdamArgs&) { note(0, 0); }
void PlanOps::do_sgd(const SgdArgs&) { note(0, 0); }
void PlanOps::do_copy(const CopyArgs&) { note(0, 0); }
void PlanOps::do_fill(const FillArgs&) { note(0, 0); }
void PlanOps::do_normal(const NormalArgs&) { note(0, 0); }
void PlanOps::do_combine(const CombineArgs&) { note(0, 0); }
void PlanOps::do_from_host(std::span<const std::byte>, const Tensor&) { note(0, 0); }
void PlanOps::do_to_host(const Tensor&, std::span<std::byte>) { note(0, 0); }

}  // namespace tera
