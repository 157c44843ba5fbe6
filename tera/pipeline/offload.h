#pragma once
// Activations that wait for their backward on the host. A block's forward writes them into one of two buffers on the
// device; from there they are copied to the host while the next block computes in the other one. Before its backward
// they come back into the same buffer, so every tensor is where it was; the copy begins one block ahead.
//
//   compute     F0      F1      F2    F3 | B3      B2      B1       B0
//   to host          0       1      2    | 3
//   from host                            |         1       0               3 and 2 are still in the buffers
//
// Nothing waits that need not: a buffer is written anew when its copy to the host is done, and read when the copy from
// there is; both are points on the copies' own timelines (ops/ticket.h).

#include <array>
#include <string_view>
#include <vector>

#include "tera/nn/offload_tags.h"
#include "tera/ops/ops.h"
#include "tera/pipeline/schedule.h"
#include "tera/tensor/stash.h"

namespace tera {

// Three kinds pass through buffers of their own, because they are needed at different times: x is written by the block
// before; W needs f_to_w alone.
enum class OffloadKind : std::uint8_t { x, f_to_b, f_to_w };
inline constexpr std::size_t offload_kinds = 3, offload_buffers = 2;
using OffloadBuffers = std::array<std::vector<Arena>, offload_kinds>;  // of each kind none or offload_buffers

class Offload final : public StashDetour {
 public:
  // One block of one microbatch: what it has on the host. It always passes through the same buffers.
  struct Parcel {
    std::size_t turn = 0;                                     // decides on the buffers
    std::array<std::span<std::byte>, offload_kinds> on_host;  // empty: nothing
  };
  // Memory of the host for one microbatch; none: nothing is sent.
  struct Host {
    Arena *f_to_b = nullptr, *f_to_w = nullptr;  // x is in f_to_b
  };

  // All three outlive it.
  Offload(Ops& ops, const OffloadTags& tags, OffloadBuffers& buffers);
  bool any() const { return tags_.any(); }
  bool takes_x() const { return tags_.x; }

  // One call of a block. In F, what it takes goes to its buffers, and what is needed of them is sent afterwards; in B
  // and W its parcel is brought back first.
  void begin_f(Parcel& parcel, const Host& host);
  Tensor take_x(Parcel& next, const Shape& shape, DType dtype);  // the block's y, which is the x of the next one
  void end_f(Parcel* next);                                      // sends; next: whose x was taken, or null
  void begin_b(Parcel& parcel, Act act);
  // Begins to bring back what the call after this one needs, as far as this one leaves the buffers alone.
  void bring_ahead(Parcel& parcel, Act act);

  static void forget(Parcel& parcel, Act act);  // after its action: the host's memory is free
  void end();                                   // of a step: the buffers are free

 private:
  struct Buffer {
    Arena* arena = nullptr;
    void* data = nullptr;           // its first byte
    const Parcel* holds = nullptr;  // whose content is there, or on its way
    std::uint64_t call = 0;         // the latest that used it
    Ticket sent, brought;           // of copies that have not been waited for
  };

  Tensor take(Life life, const Shape& shape, DType dtype, std::string_view tag) override;
  Tensor take(OffloadKind kind, Parcel& parcel, const Shape& shape, DType dtype, std::string_view tag);
  void begin_call();
  void open(Buffer& buffer, const Parcel& parcel);
  void send(OffloadKind kind, Parcel& parcel);
  void bring(OffloadKind kind, Parcel& parcel);
  Buffer& buffer(OffloadKind kind, const Parcel& parcel);

  Ops& ops_;
  const OffloadTags& tags_;
  std::array<std::array<Buffer, offload_buffers>, offload_kinds> buffers_;
  Parcel* now_ = nullptr;  // in F: whose takes come
  Host host_;
  std::uint64_t calls_ = 0;
  Ticket before_call_;  // all earlier calls are done there
};

}  // namespace tera
