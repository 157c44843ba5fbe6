#include "tools/cuda_on_cpu/nccl_work.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tools/cuda_on_cpu/nccl_sum.h"

namespace cuda_on_cpu::nccl {
namespace {

// Messages begin at multiples of it: neither what they begin with nor an element lies across the end of the ring.
constexpr std::size_t alignment = sizeof(Call);
static_assert(alignment == 32 && Pipe::capacity % alignment == 0);

std::size_t padded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

std::byte* at(void* data, std::size_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, std::size_t bytes) { return static_cast<const std::byte*>(data) + bytes; }

const char* name_of(Kind kind) {
  constexpr std::array names{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"};
  const auto number = static_cast<std::size_t>(kind);
  return number < names.size() ? names[number] : "unknown";
}

}  // namespace

std::string to_string(const Call& call) {
  std::string text = std::string(name_of(call.kind)) + " of " + std::to_string(call.count) + " " + name_of(call.type);
  if (call.op >= 0) {
    const char* const op = name_of(static_cast<ncclRedOp_t>(call.op));
    text += std::string(", ") + (op ? op : "unknown reduction");
  }
  if (call.root >= 0) text += ", root " + std::to_string(call.root);
  return text;
}

Work::Sum& Work::add_sum(const Call& call, const std::byte* local, std::byte* result, std::size_t bytes) {
  Sum sum{.call = call, .local = local, .result = result, .bytes = bytes, .parts = {}};
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank_) expect(peer, call, nullptr, bytes);
    sum.parts.push_back(peer == rank_ ? nullptr : &incoming_[peer].back());
  }
  return sums_.emplace_back(std::move(sum));
}

// A reduce-scatter and an all-gather: each rank reduces one part, and sends the others the result.
void Work::add_all_reduce(const Call& call, const void* in, void* out) {
  const std::size_t element = size_of(call.type);
  const auto begin_of = [&](int rank) {
    return call.count / ranks() * rank * element + std::min<std::size_t>(rank, call.count % ranks()) * element;
  };
  const auto bytes_of = [&](int rank) { return begin_of(rank + 1) - begin_of(rank); };
  Sum& sum = add_sum(call, at(in, begin_of(rank_)), at(out, begin_of(rank_)), bytes_of(rank_));
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_) continue;
    outgoing_[peer].push_back({call, at(in, begin_of(peer)), bytes_of(peer)});
    outgoing_[peer].push_back({call, sum.result, sum.bytes, &sum.done});
    expect(peer, call, at(out, begin_of(peer)), bytes_of(peer));
  }
}

void Work::add_all_gather(const Call& call, const void* in, void* out) {
  const std::size_t bytes = call.count * size_of(call.type);
  copies_.push_back({in, at(out, rank_ * bytes), bytes});
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_) continue;
    outgoing_[peer].push_back({call, at(in, 0), bytes});
    expect(peer, call, at(out, peer * bytes), bytes);
  }
}

void Work::add_reduce_scatter(const Call& call, const void* in, void* out) {
  const std::size_t bytes = call.count * size_of(call.type);
  add_sum(call, at(in, rank_ * bytes), at(out, 0), bytes);
  for (int peer = 0; peer < ranks(); ++peer)
    if (peer != rank_) outgoing_[peer].push_back({call, at(in, peer * bytes), bytes});
}

// All ranks send each other the call's header, so that a rank with another root is noticed.
void Work::add_broadcast(const Call& call, const void* in, void* out) {
  const std::size_t bytes = call.count * size_of(call.type);
  if (rank_ == call.root) copies_.push_back({in, out, bytes});
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_) continue;
    outgoing_[peer].push_back({call, at(in, 0), rank_ == call.root ? bytes : 0});
    expect(peer, call, out, peer == call.root ? bytes : 0);
  }
}

// A sender that did not wait would hide orders of calls in which all wait for each other on a GPU.
void Work::add_send(const Call& call, const void* in, int peer) {
  outgoing_[peer].push_back({call, at(in, 0), call.count * size_of(call.type), nullptr, /*until_taken=*/true});
}

void Work::add_receive(const Call& call, void* out, int peer) {
  expect(peer, call, out, call.count * size_of(call.type));
}

bool Work::write(Outgoing& message, Pipe& pipe) {
  const std::size_t before = message.written, ready = message.ready ? *message.ready : message.bytes;
  const auto put = [&](const std::byte* from, std::size_t begin, std::size_t end) {
    if (message.written < begin || message.written >= end) return;
    message.written += pipe.write(from + (message.written - begin), end - message.written);
  };
  const std::size_t data = sizeof(Call);
  put(reinterpret_cast<const std::byte*>(&message.call), 0, data);
  put(message.data, data, data + ready);
  constexpr std::byte nothing[alignment]{};
  if (ready == message.bytes) put(nothing, data + message.bytes, data + padded(message.bytes));
  return message.written != before;
}

bool Work::read(Incoming& message, Pipe& pipe, int from) {
  std::span<const std::byte> there = pipe.peek();
  const bool begins = !message.begun;
  if (begins) {
    if (there.size() < sizeof(Call)) return false;
    Call call;
    std::memcpy(&call, there.data(), sizeof(call));
    if (!(call == message.call)) {
      fault_ = "rank " + std::to_string(rank_) + " has " + to_string(message.call) + ", rank " + std::to_string(from) +
               " has " + to_string(call);
      return false;
    }
    pipe.take(sizeof(call));
    message.begun = true;
    there = pipe.peek();
  }
  const std::size_t before = message.taken;
  if (message.data != nullptr && message.taken < message.bytes) {
    const std::size_t bytes = std::min(there.size(), message.bytes - message.taken);
    std::memcpy(message.data + message.taken, there.data(), bytes);
    message.taken += bytes;
    pipe.take(bytes);
    there = pipe.peek();
  }
  if (message.taken >= message.bytes && message.taken < padded(message.bytes)) {
    const std::size_t bytes = std::min(there.size(), padded(message.bytes) - message.taken);
    message.taken += bytes;
    pipe.take(bytes);
  }
  return begins || message.taken != before;
}

// Reduces as many elements as all ranks have sent.
bool Work::progress(Sum& sum, Rendezvous& rendezvous) {
  const std::size_t element = size_of(sum.call.type);
  std::size_t bytes = sum.bytes - sum.done;
  std::vector<const std::byte*> parts;
  for (int rank = 0; rank < ranks(); ++rank) {
    const Incoming* const part = sum.parts[rank];
    if (part == nullptr) {
      parts.push_back(sum.local + sum.done);
      continue;
    }
    if (!part->begun || part != &incoming_[rank].front()) return false;
    const std::span<const std::byte> there = rendezvous.pipe(rank, rank_).peek();
    bytes = std::min(bytes, there.size());
    parts.push_back(there.data());
  }
  bytes -= bytes % element;
  if (bytes == 0) return false;
  combine(sum.call.type, static_cast<ncclRedOp_t>(sum.call.op), parts, sum.result + sum.done, bytes / element);
  sum.done += bytes;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (sum.parts[rank] == nullptr) continue;
    sum.parts[rank]->taken += bytes;
    rendezvous.pipe(rank, rank_).take(bytes);
  }
  return true;
}

bool Work::send_to(int peer, Rendezvous& rendezvous) {
  bool moved = false;
  auto& messages = outgoing_[peer];
  for (Pipe& pipe = rendezvous.pipe(rank_, peer); !messages.empty();) {
    Outgoing& message = messages.front();
    moved |= write(message, pipe);
    if (message.written < sizeof(Call) + padded(message.bytes) || (message.until_taken && !pipe.empty())) break;
    messages.pop_front();
    moved = true;
  }
  return moved;
}

bool Work::receive_from(int peer, Rendezvous& rendezvous) {
  bool moved = false;
  auto& messages = incoming_[peer];
  for (Pipe& pipe = rendezvous.pipe(peer, rank_); !messages.empty() && fault_.empty();) {
    Incoming& message = messages.front();
    moved |= read(message, pipe, peer);
    if (!message.begun || message.taken < padded(message.bytes)) break;
    messages.pop_front();
    moved = true;
  }
  return moved;
}

// Sends before it looks at what comes: where calls differ, all ranks see it.
bool Work::progress(Rendezvous& rendezvous) {
  if (!copied_) {
    for (const Copy& copy : copies_)
      if (copy.from != copy.to && copy.bytes > 0) std::memmove(copy.to, copy.from, copy.bytes);
    copied_ = true;
  }
  bool moved = false;
  for (Sum& sum : sums_)
    if (sum.done < sum.bytes) moved |= progress(sum, rendezvous);
  for (int peer = 0; peer < ranks(); ++peer) moved |= send_to(peer, rendezvous);
  for (int peer = 0; peer < ranks(); ++peer) moved |= receive_from(peer, rendezvous);
  return moved;
}

bool Work::done() const {
  const auto empty = [](const auto& messages) { return messages.empty(); };
  return copied_ && std::all_of(outgoing_.begin(), outgoing_.end(), empty) &&
         std::all_of(incoming_.begin(), incoming_.end(), empty) &&
         std::all_of(sums_.begin(), sums_.end(), [](const Sum& sum) { return sum.done == sum.bytes; });
}

}  // namespace cuda_on_cpu::nccl
