#pragma once
// What ranks tell each other, apart from the bytes of large tensors: one small message ahead of each. A tensor that
// fits travels inside.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tera/comm/call.h"
#include "tera/tensor/shape.h"

namespace tera::mpi {

enum class MessageKind : std::uint8_t {
  call,   // a part of a call: who makes it, and the bytes or where they follow
  abort,  // the sender has failed; its reason is inside
  ping,   // what are you doing?
  pong,   // the answer, as text
  bye     // the sender has left its work (stage 1), has told its fault (stage 2)
};

struct Header {
  MessageKind kind = MessageKind::call;
  bool failed_or_stuck = false;  // bye: its work failed (stage 1), bytes of it are under way (stage 2)
  int stage = 0;                 // bye
  std::uint64_t group = 0;       // call, as everything below
  int from = 0;                  // rank in the group
  std::uint64_t number = 0;      // of the collective in its group, or of the transfer between two ranks
  Call call;
  DType dtype = DType::f32;  // of a transfer
  Shape shape;               // and of it, too
  std::int64_t rows = 0;     // of an all_to_all
  std::uint64_t bytes = 0;
  int tag = 0;  // of the messages that bring them, unless they are inside
};

struct Message {
  // Open MPI sends bytes of up to 4 KiB ahead on one machine and keeps what nobody asked for yet. So these come in
  // messages, which are always asked for.
  static constexpr std::size_t room = 4096;
  static constexpr std::size_t size = room + sizeof(Header);
  Header header;
  alignas(8) std::array<std::byte, room> payload;

  // Not sent.
  int source = 0;  // rank of the world
  std::size_t payload_bytes = 0;
};
static_assert(offsetof(Message, payload) == sizeof(Header) && sizeof(Header) % 8 == 0);

}  // namespace tera::mpi
