#include "tera/pipeline/offload.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::array all_kinds{OffloadKind::x, OffloadKind::f_to_b, OffloadKind::f_to_w};

std::size_t slot_of(OffloadKind kind) { return static_cast<std::size_t>(kind); }

// B reads what W needs, too: attention's output.
bool needs(Act act, OffloadKind kind) { return act != Act::W || kind == OffloadKind::f_to_w; }

}  // namespace

Offload::Offload(Ops& ops, const OffloadTags& tags, OffloadBuffers& buffers) : ops_(ops), tags_(tags) {
  for (std::size_t kind = 0; kind < offload_kinds; ++kind)
    for (std::size_t i = 0; i < buffers[kind].size(); ++i) buffers_[kind][i].arena = &buffers[kind][i];
}

Offload::Buffer& Offload::buffer(OffloadKind kind, const Parcel& parcel) {
  return buffers_[slot_of(kind)][parcel.turn % offload_buffers];
}

void Offload::begin_call() {
  ++calls_;
  before_call_ = ops_.record();
}

void Offload::begin_f(Parcel& parcel, const Host& host) {
  begin_call();
  now_ = &parcel;
  host_ = host;
  Buffer& x = buffer(OffloadKind::x, parcel);
  if (x.holds == &parcel) x.call = calls_;
}

// What was there is on the host by then, and has been used where it had come from there.
void Offload::open(Buffer& buffer, const Parcel& parcel) {
  ops_.wait(buffer.sent);
  ops_.wait(buffer.brought);
  buffer.sent = buffer.brought = {};
  buffer.arena->rewind(0);
  buffer.holds = &parcel;
  buffer.call = calls_;
}

// Both sides are laid out alike, so a parcel is one copy.
Tensor Offload::take(OffloadKind kind, Parcel& parcel, const Shape& shape, DType dtype, std::string_view tag) {
  Buffer& to = buffer(kind, parcel);
  Arena* host = kind == OffloadKind::f_to_w ? host_.f_to_w : host_.f_to_b;
  const bool first = to.call != calls_ || to.holds != &parcel;
  if (first) open(to, parcel);
  const Tensor taken = to.arena->take(shape, dtype, tag);
  if (first) to.data = taken.data;
  if (!host) return taken;
  const Tensor there = host->take(shape, dtype, tag);
  auto& on_host = parcel.on_host[slot_of(kind)];
  on_host = {first ? static_cast<std::byte*>(there.data) : on_host.data(), to.arena->mark()};
  return taken;
}

Tensor Offload::take(Life life, const Shape& shape, DType dtype, std::string_view tag) {
  const auto& tags = life == Life::f_to_b ? tags_.f_to_b : tags_.f_to_w;
  if (life == Life::b_to_w || !now_ || std::ranges::find(tags, tag) == tags.end()) return {};
  return take(life == Life::f_to_b ? OffloadKind::f_to_b : OffloadKind::f_to_w, *now_, shape, dtype, tag);
}

Tensor Offload::take_x(Parcel& next, const Shape& shape, DType dtype) {
  return take(OffloadKind::x, next, shape, dtype, "border.x");
}

void Offload::end_f(Parcel* next) {
  if (host_.f_to_b) {
    if (next) send(OffloadKind::x, *next);
    send(OffloadKind::f_to_b, *now_);
    send(OffloadKind::f_to_w, *now_);
  }
  now_ = nullptr;
}

void Offload::send(OffloadKind kind, Parcel& parcel) {
  const std::span<std::byte> to = parcel.on_host[slot_of(kind)];
  if (to.empty()) return;
  const RangeScope range(ops_, "offload");
  Buffer& from = buffer(kind, parcel);
  const Tensor bytes = make_tensor(from.data, shape(static_cast<std::int64_t>(to.size())), DType::u8);
  from.sent = ops_.to_host_beside({.tensor = bytes, .host = to, .after = ops_.record(), .and_after = {}}).end;
}

void Offload::begin_b(Parcel& parcel, Act act) {
  begin_call();
  for (const OffloadKind kind : all_kinds) {
    if (!needs(act, kind) || parcel.on_host[slot_of(kind)].empty()) continue;
    Buffer& to = buffer(kind, parcel);
    if (to.holds != &parcel) bring(kind, parcel);
    ops_.wait(to.brought);
    to.brought = {};
    to.call = calls_;
  }
}

void Offload::bring_ahead(Parcel& parcel, Act act) {
  for (const OffloadKind kind : all_kinds) {
    const Buffer& to = buffer(kind, parcel);
    if (needs(act, kind) && !parcel.on_host[slot_of(kind)].empty() && to.holds != &parcel && to.call != calls_)
      bring(kind, parcel);
  }
}

// Earlier calls have used what is in the buffer, and it is on the host. So is the parcel: it left from this buffer.
void Offload::bring(OffloadKind kind, Parcel& parcel) {
  const std::span<std::byte> from = parcel.on_host[slot_of(kind)];
  const RangeScope range(ops_, "offload");
  Buffer& to = buffer(kind, parcel);
  const Tensor bytes = make_tensor(to.data, shape(static_cast<std::int64_t>(from.size())), DType::u8);
  to.brought = ops_.from_host_beside({.tensor = bytes, .host = from, .after = before_call_, .and_after = to.sent}).end;
  to.sent = {};
  to.holds = &parcel;
}

void Offload::forget(Parcel& parcel, Act act) {
  for (const OffloadKind kind : all_kinds)
    if ((act != Act::B || kind != OffloadKind::f_to_w) && needs(act, kind)) parcel.on_host[slot_of(kind)] = {};
}

void Offload::end() {
  for (auto& kind : buffers_)
    for (Buffer& buffer : kind) {
      if (buffer.arena) buffer.arena->rewind(0);
      buffer.holds = nullptr;
    }
}

}  // namespace tera
