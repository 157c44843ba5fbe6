#include "tera/bench/profiling_ops.h"

#include <algorithm>

#include "tera/ops/all_ops.h"

namespace tera {

// Two tickets a call: enough for a step of 80 layers and 32 microbatches.
ProfilingOps::ProfilingOps(std::unique_ptr<Ops> inner) : DecoratorOps(std::move(inner)) {
  this->inner().reserve_tickets(std::size_t{1} << 18);
}
ProfilingOps::~ProfilingOps() = default;

void ProfilingOps::start(CallTimer* ranks) {
  calls_.clear();
  to_host_.clear();
  from_host_.clear();
  between_ranks_.clear();
  ranks_ = ranks;
  if (ranks_ != nullptr) ranks_->note_calls(&between_ranks_);
  on_ = true;
  first_ = inner().record();
}

Profile::Span ProfilingOps::span(Ticket begin, Ticket end) {
  inner().finish(end);
  return {inner().milliseconds(first_, begin), inner().milliseconds(first_, end)};
}

Profile ProfilingOps::finish() {
  const Ticket last = inner().record();
  inner().finish(last);
  on_ = false;
  if (ranks_ != nullptr) ranks_->note_calls(nullptr);
  Profile profile;
  profile.total_ms = inner().milliseconds(first_, last);
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
  inner().begin_range(name);
}

void ProfilingOps::end_range() {
  inner().end_range();
  ranges_.pop_back();
}

template <class Work>
void ProfilingOps::timed(OpKind kind, const Work& work) {
  if (!on_) return work();
  const Ticket begin = inner().record();
  work();
  calls_.push_back({kind, block(), begin, inner().record()});
}

CopyPoints ProfilingOps::noted(const CopyPoints& copy, std::vector<CopyPoints>& async) {
  if (on_ && copy.end.timeline == &inner()) calls_.push_back({OpKind::transfer, block(), copy.begin, copy.end});
  if (on_ && copy.end.timeline != &inner()) async.push_back(copy);
  return copy;
}

namespace {

template <class Args>
constexpr OpKind kind_of() {
  if constexpr (requires { Args::op_kind; })
    return Args::op_kind;
  else
    return OpKind::memory_bound;
}

}  // namespace

template <class Args>
void ProfilingOps::compute(const Args& args) {
  timed(kind_of<Args>(), [&] { inner()(args); });
}

void ProfilingOps::do_from_host(std::span<const std::byte> host, const Tensor& to) {
  timed(OpKind::transfer, [&] { inner().from_host(host, to); });
}
void ProfilingOps::do_to_host(const Tensor& from, std::span<std::byte> host) {
  timed(OpKind::transfer, [&] { inner().to_host(from, host); });
}
void ProfilingOps::do_to_host_later(const Tensor& from, std::span<std::byte> host) {
  timed(OpKind::transfer, [&] { inner().to_host_later(from, host); });
}
CopyPoints ProfilingOps::do_to_host_overlapped(const HostCopyArgs& a) {
  return noted(inner().to_host_overlapped(a), to_host_);
}
CopyPoints ProfilingOps::do_from_host_overlapped(const HostCopyArgs& a) {
  return noted(inner().from_host_overlapped(a), from_host_);
}

}  // namespace tera
