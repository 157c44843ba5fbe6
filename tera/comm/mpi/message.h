#pragma once
// The messages between ranks: one small message announces each tensor and holds its bytes where they fit (eager
// protocol); larger tensors follow as raw bytes (rendezvous protocol).

#include <array>
#include <cstddef>
#include <cstdint>

#include "tera/comm/call.h"
#include "tera/tensor/shape.h"

namespace tera::mpi {

struct Header {
  std::uint64_t group = 0;
  int from = 0;              // rank in the group
  std::uint64_t number = 0;  // number of the collective in its group, or of the transfer between two ranks
  Call call;
  DType dtype = DType::f32;  // transfers only
  Shape shape;               // transfers only
  std::int64_t rows = 0;     // all_to_all only
  std::uint64_t bytes = 0;
  int tag = 0;  // MPI tag of the bytes, unless they are inside
};

struct Message {
  // Open MPI sends up to 4 KiB eagerly on one machine and buffers what has no receive yet. So small tensors are sent
  // inside of messages, for which receives are always posted.
  static constexpr std::size_t capacity = 4096;
  static constexpr std::size_t size = capacity + sizeof(Header);
  Header header;
  alignas(8) std::array<std::byte, capacity> payload;

  // Not sent.
  int source = 0;  // rank of the world
  std::size_t payload_bytes = 0;
};
static_assert(offsetof(Message, payload) == sizeof(Header) && sizeof(Header) % 8 == 0);

}  // namespace tera::mpi
