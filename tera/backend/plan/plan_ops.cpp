#include "tera/backend/plan/plan_ops.h"

#include <algorithm>

namespace tera {
namespace {

double gemm_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// The offsets of the groups are in device memory, so their rows are not known here.
template <class Args>
std::int64_t expected_rows(const Args& args) {
  return args.expected_rows > 0 ? args.expected_rows : args.a.dim(0);
}

// The integral of min(x, window), the number of keys that a query at position x sees, from 0 to x.
double seen_before(double x, double window) {
  if (x <= 0) return 0;
  return x <= window ? x * x / 2 : window * window / 2 + window * (x - window);
}

// Unmasked pairs of query and key in all sequences, as an area: half a square for a causal one.
double attention_pairs(const AttentionShape& shape, const Tensor& q, const Tensor& k) {
  const auto batch = static_cast<double>(shape.batch);  // documents are not longer than sequences
  const double queries = static_cast<double>(q.dim(0)) / batch, keys = static_cast<double>(k.dim(0)) / batch;
  if (shape.mask == Mask::full) return batch * queries * keys;
  const double window = shape.window > 0 ? std::min(static_cast<double>(shape.window), keys) : keys;
  // The zigzag split of context parallelism: a rank's queries from front and back see as many keys as the average query
  // of the full sequence.
  if (shape.q_positions) return batch * seen_before(keys, window) * queries / keys;
  return batch * (seen_before(keys, window) - seen_before(keys - queries, window));
}

// Two matmuls, q k^T and p v, of two flops per pair and channel.
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
  return alike(a.gemm, b.gemm) && a.activation.kind == b.activation.kind &&
         alike(a.activation.weights, b.activation.weights);
}
bool alike(const GemmActivationBackArgs& a, const GemmActivationBackArgs& b) {
  return alike(a.gemm, b.gemm) && a.activation.kind == b.activation.kind &&
         alike(a.activation.weights, b.activation.weights);
}
template <class Args>
bool alike(const Args& a, const Args& b) {  // attention and its backward: all other arguments follow from these
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
  note(rules_.gemm(args), gemm_flops(args.m(), args.n(), args.k()));
}
void PlanOps::do_gemm_activation(const GemmActivationArgs& args) {
  keep(planned_calls_.gemm_activations, args);
  note(rules_.gemm(args.gemm), gemm_flops(args.gemm.m(), args.gemm.n(), args.gemm.k()));
}
void PlanOps::do_gemm_activation_back(const GemmActivationBackArgs& args) {
  keep(planned_calls_.gemm_activation_backs, args);
  note(rules_.gemm(args.gemm), gemm_flops(args.gemm.m(), args.gemm.n(), args.gemm.k()));
}
void PlanOps::do_grouped_gemm(const GroupedGemmArgs& args) {
  note(rules_.grouped_gemm(args), gemm_flops(expected_rows(args), args.n(), args.k()));
}
void PlanOps::do_grouped_weight_gradient(const GroupedWeightGradientArgs& args) {
  note(rules_.grouped_weight_gradient(args), gemm_flops(args.m(), args.n(), expected_rows(args)));
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
