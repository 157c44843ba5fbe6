#pragma once
// Activation offloading: activations are on the host between F and B (or W). A block's forward writes them into one of
// two buffers on the device (double buffering), from which they are copied to the host while the next block computes in
// the other one. Before the block's backward they are prefetched into the same buffer, so every tensor is where it was.
//
//   compute     F0      F1      F2    F3 | B3      B2      B1       B0
//   to host          0       1      2    | 3
//   from host                            |         1       0               3 and 2 are still in the buffers
//
// Computation waits only where it must: a buffer is written again when its copy to the host is done, and read when the
// copy from there is; both are points on streams of the copies (ops/ticket.h).

#include <array>
#include <string_view>
#include <vector>

#include "tera/nn/offload_tags.h"
#include "tera/ops/ops.h"
#include "tera/pipeline/schedule.h"
#include "tera/tensor/stash.h"

namespace tera {

// Three kinds have buffers of their own, because they are needed at different times: x is written by the previous
// block; W needs f_to_w alone.
enum class OffloadKind : std::uint8_t { x, f_to_b, f_to_w };
inline constexpr std::size_t offload_kinds = 3, offload_buffers = 2;
using OffloadBuffers = std::array<std::vector<Arena>, offload_kinds>;  // per kind none, or offload_buffers

class Offload final : public StashRedirect {
 public:
  // What one block of one microbatch has on the host. It always uses the same buffers.
  struct OffloadSlot {
    std::size_t index = 0;                                    // modulo offload_buffers: its buffers
    std::array<std::span<std::byte>, offload_kinds> on_host;  // empty: nothing
  };
  // Host memory for one microbatch; null: nothing is sent.
  struct Host {
    Arena *f_to_b = nullptr, *f_to_w = nullptr;  // x is in f_to_b
  };

  // All three outlive it.
  Offload(Ops& ops, const OffloadTags& tags, OffloadBuffers& buffers);
  bool any() const { return tags_.any(); }
  bool takes_x() const { return tags_.x; }

  // Around one call of a block. In F its tensors are taken from the buffers and sent to the host afterwards; in B and W
  // its slot is fetched back first.
  void begin_f(OffloadSlot& slot, const Host& host);
  Tensor take_x(OffloadSlot& next, const Shape& shape, DType dtype);  // the block's y, which is the x of the next one
  void end_f(OffloadSlot* next);  // sends; next: the block whose x was taken, or null
  void begin_b(OffloadSlot& slot, Act act);
  // Starts to fetch what the next call needs, into buffers that the current call does not use.
  void prefetch(OffloadSlot& slot, Act act);

  static void release(OffloadSlot& slot, Act act);  // after its action: the host's memory is free
  void end();                                       // end of a step: the buffers are free

 private:
  struct Buffer {
    Arena* arena = nullptr;
    void* data = nullptr;                // its first byte
    const OffloadSlot* holds = nullptr;  // the slot whose content is there or in flight
    std::uint64_t call = 0;              // the latest call that used it
    Ticket sent, fetched;                // copies that have not been waited for
  };

  Tensor take(Life life, const Shape& shape, DType dtype, std::string_view tag) override;
  Tensor take(OffloadKind kind, OffloadSlot& slot, const Shape& shape, DType dtype, std::string_view tag);
  void begin_call();
  void open(Buffer& buffer, const OffloadSlot& slot);
  void send(OffloadKind kind, OffloadSlot& slot);
  void fetch(OffloadKind kind, OffloadSlot& slot);
  Buffer& buffer(OffloadKind kind, const OffloadSlot& slot);

  Ops& ops_;
  const OffloadTags& tags_;
  std::array<std::array<Buffer, offload_buffers>, offload_kinds> buffers_;
  OffloadSlot* now_ = nullptr;  // in F: the slot of the current block
  Host host_;
  std::uint64_t calls_ = 0;
  Ticket before_call_;  // when all earlier calls are done
};

}  // namespace tera
