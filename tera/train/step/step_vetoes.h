#pragma once
// Vetoes against the update of a step, as flags on the device, so that the host waits for none and a CUDA graph replays
// the decision: a flag that is not finite on any rank skips the update on all, as overflowed gradients do.

#include <cstdint>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/tensor/arena.h"

namespace tera {

class StepVetoes {
 public:
  std::int64_t add() { return count_++; }  // at set-up, before bind(); returns the id
  bool any() const { return count_ > 0; }
  void bind(Arena& arena);

  // f32 [1]: 0, or not finite to skip. Flags are added to the factor of the gradients, so no other value may be
  // written.
  Tensor flag(std::int64_t id) const { return flags_.rows(id, id + 1); }
  std::vector<Tensor> flags() const;

  void clear(Ops& ops) const;                 // before the first microbatch
  void combine(Ops& ops, Comm& world) const;  // after backward: every rank has the vetoes of all

 private:
  std::int64_t count_ = 0;
  Tensor flags_;
};

}  // namespace tera
