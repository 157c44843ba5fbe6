#include "tera/pipeline/offload.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::array all_kinds{OffloadKind::x, OffloadKind::f_to_b, OffloadKind::f_to_w};

std::size_t kind_index(OffloadKind kind) { return static_cast<std::size_t>(kind); }

// B reads what W needs, too: attention's output.
bool needs(Act act, OffloadKind kind) { return act != Act::W || kind == OffloadKind::f_to_w; }

}  // namespace

Offload::Offload(Ops& ops, const OffloadTags& tags, OffloadBuffers& buffers) : ops_(ops), tags_(tags) {
  for (std::size_t kind = 0; kind < offload_kinds; ++kind)
    for (std::size_t i = 0; i < buffers[kind].size(); ++i) buffers_[kind][i].arena = &buffers[kind][i];
}

Offload::Buffer& Offload::buffer(OffloadKind kind, const OffloadSlot& slot) {
  return buffers_[kind_index(kind)][slot.index % offload_buffers];
}

void Offload::begin_call() {
  ++calls_;
  before_call_ = ops_.record();
}

void Offload::begin_f(OffloadSlot& slot, const Host& host) {
  begin_call();
  now_ = &slot;
  host_ = host;
  Buffer& x = buffer(OffloadKind::x, slot);
  if (x.holds == &slot) x.call = calls_;
}

// Waits until the buffer's content has been sent to the host and its fetched content has been used.
void Offload::open(Buffer& buffer, const OffloadSlot& slot) {
  ops_.wait(buffer.sent);
  ops_.wait(buffer.fetched);
  buffer.sent = buffer.fetched = {};
  buffer.arena->rewind(0);
  buffer.holds = &slot;
  buffer.call = calls_;
}

// Device and host memory have the same layout, so a slot is one copy per kind.
Tensor Offload::take(OffloadKind kind, OffloadSlot& slot, const Shape& shape, DType dtype, std::string_view tag) {
  Buffer& to = buffer(kind, slot);
  Arena* host = kind == OffloadKind::f_to_w ? host_.f_to_w : host_.f_to_b;
  const bool first = to.call != calls_ || to.holds != &slot;
  if (first) open(to, slot);
  const Tensor taken = to.arena->take(shape, dtype, tag);
  if (first) to.data = taken.data;
  if (!host) return taken;
  const Tensor there = host->take(shape, dtype, tag);
  auto& on_host = slot.on_host[kind_index(kind)];
  on_host = {first ? static_cast<std::byte*>(there.data) : on_host.data(), to.arena->mark()};
  return taken;
}

Tensor Offload::take(Life life, const Shape& shape, DType dtype, std::string_view tag) {
  const auto& tags = life == Life::f_to_b ? tags_.f_to_b : tags_.f_to_w;
  if (life == Life::b_to_w || !now_ || std::ranges::find(tags, tag) == tags.end()) return {};
  return take(life == Life::f_to_b ? OffloadKind::f_to_b : OffloadKind::f_to_w, *now_, shape, dtype, tag);
}

Tensor Offload::take_x(OffloadSlot& next, const Shape& shape, DType dtype) {
  return take(OffloadKind::x, next, shape, dtype, "border.x");
}

void Offload::end_f(OffloadSlot* next) {
  if (host_.f_to_b) {
    if (next) send(OffloadKind::x, *next);
    send(OffloadKind::f_to_b, *now_);
    send(OffloadKind::f_to_w, *now_);
  }
  now_ = nullptr;
}

void Offload::send(OffloadKind kind, OffloadSlot& slot) {
  const std::span<std::byte> to = slot.on_host[kind_index(kind)];
  if (to.empty()) return;
  const RangeScope range(ops_, "offload");
  Buffer& from = buffer(kind, slot);
  const Tensor bytes = make_tensor(from.data, shape(static_cast<std::int64_t>(to.size())), DType::u8);
  from.sent = ops_.to_host_overlapped({.tensor = bytes, .host = to, .after = ops_.record(), .and_after = {}}).end;
}

void Offload::begin_b(OffloadSlot& slot, Act act) {
  begin_call();
  for (const OffloadKind kind : all_kinds) {
    if (!needs(act, kind) || slot.on_host[kind_index(kind)].empty()) continue;
    Buffer& to = buffer(kind, slot);
    if (to.holds != &slot) fetch(kind, slot);
    ops_.wait(to.fetched);
    to.fetched = {};
    to.call = calls_;
  }
}

void Offload::prefetch(OffloadSlot& slot, Act act) {
  for (const OffloadKind kind : all_kinds) {
    const Buffer& to = buffer(kind, slot);
    if (needs(act, kind) && !slot.on_host[kind_index(kind)].empty() && to.holds != &slot && to.call != calls_)
      fetch(kind, slot);
  }
}

// The copy waits until earlier calls have used the buffer's content and it is on the host; then the slot's own content,
// which was sent from this buffer before, is there too.
void Offload::fetch(OffloadKind kind, OffloadSlot& slot) {
  const std::span<std::byte> from = slot.on_host[kind_index(kind)];
  const RangeScope range(ops_, "offload");
  Buffer& to = buffer(kind, slot);
  const Tensor bytes = make_tensor(to.data, shape(static_cast<std::int64_t>(from.size())), DType::u8);
  to.fetched =
      ops_.from_host_overlapped({.tensor = bytes, .host = from, .after = before_call_, .and_after = to.sent}).end;
  to.sent = {};
  to.holds = &slot;
}

void Offload::release(OffloadSlot& slot, Act act) {
  for (const OffloadKind kind : all_kinds)
    if ((act != Act::B || kind != OffloadKind::f_to_w) && needs(act, kind)) slot.on_host[kind_index(kind)] = {};
}

void Offload::end() {
  for (auto& kind : buffers_)
    for (Buffer& buffer : kind) {
      if (buffer.arena) buffer.arena->rewind(0);
      buffer.holds = nullptr;
    }
}

}  // namespace tera
