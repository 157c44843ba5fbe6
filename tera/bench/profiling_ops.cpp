#include "tera/bench/profiling_ops.h"

#include <algorithm>

namespace tera {

// Two tickets a call: enough for a step of 80 layers and 32 microbatches.
ProfilingOps::ProfilingOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {
  inner_->reserve_tickets(std::size_t{1} << 18);
}

void ProfilingOps::start(CallTimer* ranks) {
  calls_.clear();
  to_host_.clear();
  from_host_.clear();
  between_ranks_.clear();
  ranks_ = ranks;
  if (ranks_ != nullptr) ranks_->note_calls(&between_ranks_);
  on_ = true;
  first_ = inner_->record();
}

Profile::Span ProfilingOps::span(Ticket begin, Ticket end) {
  inner_->finish(end);
  return {inner_->milliseconds(first_, begin), inner_->milliseconds(first_, end)};
}

Profile ProfilingOps::finish() {
  const Ticket last = inner_->record();
  inner_->finish(last);
  on_ = false;
  if (ranks_ != nullptr) ranks_->note_calls(nullptr);
  Profile profile;
  profile.total_ms = inner_->milliseconds(first_, last);
  for (const Call& call : calls_) profile.work.push_back({span(call.begin, call.end), call.kind, call.block});
  std::sort(profile.work.begin(), profile.work.end(),
            [](const Profile::Work& a, const Profile::Work& b) { return a.begin < b.begin; });
  for (const TimedCall& call : between_ranks_)
    profile.async_calls.push_back(
        {span(call.begin, call.end), std::string(call.group), std::string(name_of(call.kind))});
  for (const CopyPoints& copy : to_host_)
    profile.async_calls.push_back({span(copy.begin, copy.end), "offload", "to the host"});
  for (const CopyPoints& copy : from_host_)
    profile.async_calls.push_back({span(copy.begin, copy.end), "offload", "from the host"});
  return profile;
}

void ProfilingOps::begin_range(const char* name) {
  ranges_.push_back(name);
  inner_->begin_range(name);
}

void ProfilingOps::end_range() {
  inner_->end_range();
  ranges_.pop_back();
}

template <class Work>
void ProfilingOps::timed(WorkKind kind, const Work& work) {
  if (!on_) return work();
  const Ticket begin = inner_->record();
  work();
  calls_.push_back({kind, block(), begin, inner_->record()});
}

CopyPoints ProfilingOps::noted(const CopyPoints& copy, std::vector<CopyPoints>& async) {
  if (on_ && copy.end.timeline == inner_.get()) calls_.push_back({WorkKind::transfer, block(), copy.begin, copy.end});
  if (on_ && copy.end.timeline != inner_.get()) async.push_back(copy);
  return copy;
}

void ProfilingOps::do_gemm(const GemmArgs& a) {
  timed(WorkKind::gemm, [&] { inner_->gemm(a); });
}
void ProfilingOps::do_gemm_activation(const GemmActivationArgs& a) {
  timed(WorkKind::gemm, [&] { inner_->gemm_activation(a); });
}
void ProfilingOps::do_gemm_activation_back(const GemmActivationBackArgs& a) {
  timed(WorkKind::gemm, [&] { inner_->gemm_activation_back(a); });
}
void ProfilingOps::do_attention(const AttentionArgs& a) {
  timed(WorkKind::attention, [&] { inner_->attention(a); });
}
void ProfilingOps::do_attention_back(const AttentionBackArgs& a) {
  timed(WorkKind::attention, [&] { inner_->attention_back(a); });
}
void ProfilingOps::do_column_sum(const ColumnSumArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->column_sum(a); });
}
void ProfilingOps::do_norm(const NormArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->norm(a); });
}
void ProfilingOps::do_norm_back(const NormBackArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->norm_back(a); });
}
void ProfilingOps::do_rope(const RopeArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->rope(a); });
}
void ProfilingOps::do_latent_heads(const LatentHeadsArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->latent_heads(a); });
}
void ProfilingOps::do_merge_attention(const MergeAttentionArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->merge_attention(a); });
}
void ProfilingOps::do_latent_heads_back(const LatentHeadsBackArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->latent_heads_back(a); });
}
void ProfilingOps::do_activation(const ActivationArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->activation(a); });
}
void ProfilingOps::do_activation_back(const ActivationBackArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->activation_back(a); });
}
void ProfilingOps::do_dropout(const DropoutArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->dropout(a); });
}
void ProfilingOps::do_group_rows(const GroupRowsArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->group_rows(a); });
}
void ProfilingOps::do_permute(const PermuteArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->permute(a); });
}
void ProfilingOps::do_unpermute(const UnpermuteArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->unpermute(a); });
}
void ProfilingOps::do_grouped_gemm(const GroupedGemmArgs& a) {
  timed(WorkKind::gemm, [&] { inner_->grouped_gemm(a); });
}
void ProfilingOps::do_grouped_weight_gradient(const GroupedWeightGradientArgs& a) {
  timed(WorkKind::gemm, [&] { inner_->grouped_weight_gradient(a); });
}
void ProfilingOps::do_embedding(const EmbeddingArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->embedding(a); });
}
void ProfilingOps::do_embedding_back(const EmbeddingBackArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->embedding_back(a); });
}
void ProfilingOps::do_cross_entropy(const CrossEntropyArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->cross_entropy(a); });
}
void ProfilingOps::do_cross_entropy_stats(const CrossEntropyStatsArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->cross_entropy_stats(a); });
}
void ProfilingOps::do_route(const RouteArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->route(a); });
}
void ProfilingOps::do_route_back(const RouteBackArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->route_back(a); });
}
void ProfilingOps::do_balance_loss(const BalanceLossArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->balance_loss(a); });
}
void ProfilingOps::do_expert_bias(const ExpertBiasArgs& a) {
  timed(WorkKind::optimizer, [&] { inner_->expert_bias(a); });
}
void ProfilingOps::do_sum(const SumArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->sum(a); });
}
void ProfilingOps::do_sum_squares(const SumSquaresArgs& a) {
  timed(WorkKind::optimizer, [&] { inner_->sum_squares(a); });
}
void ProfilingOps::do_clip(const ClipArgs& a) {
  timed(WorkKind::optimizer, [&] { inner_->clip(a); });
}
void ProfilingOps::do_scale_loss(const ScaleLossArgs& a) {
  timed(WorkKind::optimizer, [&] { inner_->scale_loss(a); });
}
void ProfilingOps::do_count_step(const CountStepArgs& a) {
  timed(WorkKind::optimizer, [&] { inner_->count_step(a); });
}
void ProfilingOps::do_adam(const AdamArgs& a) {
  timed(WorkKind::optimizer, [&] { inner_->adam(a); });
}
void ProfilingOps::do_sgd(const SgdArgs& a) {
  timed(WorkKind::optimizer, [&] { inner_->sgd(a); });
}
void ProfilingOps::do_copy(const CopyArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->copy(a); });
}
void ProfilingOps::do_fill(const FillArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->fill(a); });
}
void ProfilingOps::do_normal(const NormalArgs& a) {
  timed(WorkKind::memory_bound, [&] { inner_->normal(a); });
}
void ProfilingOps::do_combine(const CombineArgs& a) {
  timed(WorkKind::transfer, [&] { inner_->combine(a); });
}
void ProfilingOps::do_from_host(std::span<const std::byte> host, const Tensor& to) {
  timed(WorkKind::transfer, [&] { inner_->from_host(host, to); });
}
void ProfilingOps::do_to_host(const Tensor& from, std::span<std::byte> host) {
  timed(WorkKind::transfer, [&] { inner_->to_host(from, host); });
}
void ProfilingOps::do_to_host_later(const Tensor& from, std::span<std::byte> host) {
  timed(WorkKind::transfer, [&] { inner_->to_host_later(from, host); });
}
CopyPoints ProfilingOps::do_to_host_overlapped(const HostCopyArgs& a) {
  return noted(inner_->to_host_overlapped(a), to_host_);
}
CopyPoints ProfilingOps::do_from_host_overlapped(const HostCopyArgs& a) {
  return noted(inner_->from_host_overlapped(a), from_host_);
}

}  // namespace tera
