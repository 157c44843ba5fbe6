#include "tera/train/profiling_ops.h"

#include <fmt/core.h>

#include <iterator>
#include <numeric>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::array<const char*, static_cast<std::size_t>(WorkKind::count)> headings{
    "gemm", "attention", "memory-bound", "optimizer", "transfer"};

double sum(const Profile::Times& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

}  // namespace

double Profile::of(WorkKind kind) const {
  double total = 0;
  for (const auto& [name, times] : blocks) total += times[static_cast<std::size_t>(kind)];
  return total;
}

double Profile::busy() const {
  double total = 0;
  for (const auto& [name, times] : blocks) total += sum(times);
  return total;
}

std::string Profile::table(int steps) const {
  std::string text;
  const auto line = [&](std::string_view name, const Times& times, double row) {
    fmt::format_to(std::back_inserter(text), "{:<14}", name);
    for (double time : times) fmt::format_to(std::back_inserter(text), "{:>14.2f}", time / steps);
    fmt::format_to(std::back_inserter(text), "{:>12.2f}{:>8.1f} %\n", row / steps, 100 * row / total_ms);
  };
  text += fmt::format("{:<14}", "ms per step");
  for (const char* heading : headings) text += fmt::format("{:>14}", heading);
  text += fmt::format("{:>12}{:>10}\n", "sum", "share");
  Times totals{};
  for (const auto& [name, times] : blocks) {
    line(name, times, sum(times));
    for (std::size_t i = 0; i < totals.size(); ++i) totals[i] += times[i];
  }
  line("all", totals, busy());
  text += fmt::format("{:<14}{:>82.2f}{:>8.1f} %\n", "idle", (total_ms - busy()) / steps,
                      100 * (total_ms - busy()) / total_ms);
  if (to_host_beside_ms + from_host_beside_ms > 0)
    text += fmt::format("beside this, offload: {:.2f} to the host, {:.2f} back\n", to_host_beside_ms / steps,
                        from_host_beside_ms / steps);
  return text;
}

// Two tickets a call: enough for a step of 80 layers and 32 microbatches.
ProfilingOps::ProfilingOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {
  inner_->reserve_tickets(std::size_t{1} << 18);
}

void ProfilingOps::start() {
  calls_.clear();
  to_host_.clear();
  from_host_.clear();
  on_ = true;
  first_ = inner_->record();
}

Profile ProfilingOps::finish() {
  const Ticket last = inner_->record();
  inner_->finish(last);
  on_ = false;
  Profile profile;
  profile.total_ms = inner_->milliseconds(first_, last);
  for (const Call& call : calls_)
    profile.blocks[call.block][static_cast<std::size_t>(call.kind)] += inner_->milliseconds(call.begin, call.end);
  const auto sum_up = [&](const std::vector<CopyPoints>& copies) {
    double ms = 0;
    for (const CopyPoints& copy : copies) {
      inner_->finish(copy.end);
      ms += inner_->milliseconds(copy.begin, copy.end);
    }
    return ms;
  };
  profile.to_host_beside_ms = sum_up(to_host_);
  profile.from_host_beside_ms = sum_up(from_host_);
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

CopyPoints ProfilingOps::noted(const CopyPoints& copy, std::vector<CopyPoints>& beside) {
  if (on_ && copy.end.timeline == inner_.get()) calls_.push_back({WorkKind::transfer, block(), copy.begin, copy.end});
  if (on_ && copy.end.timeline != inner_.get()) beside.push_back(copy);
  return copy;
}

void ProfilingOps::do_gemm(const GemmArgs& a) {
  timed(WorkKind::gemm, [&] { inner_->gemm(a); });
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
CopyPoints ProfilingOps::do_to_host_beside(const HostCopyArgs& a) { return noted(inner_->to_host_beside(a), to_host_); }
CopyPoints ProfilingOps::do_from_host_beside(const HostCopyArgs& a) {
  return noted(inner_->from_host_beside(a), from_host_);
}

}  // namespace tera
