#pragma once
// A block whose F and B are divided into phases where they would wait for other ranks (the all-to-alls of expert
// parallelism). A schedule that overlaps the forward of one microbatch with the backward of another runs their phases
// in turn, so that communication of one hides behind computation of the other. All phases of a call run in order, with
// the same arguments and with one scratch that nobody rewinds in between; one after the other they are the call.

#include "tera/nn/block.h"

namespace tera {

class Phased {
 public:
  virtual ~Phased() = default;
  virtual int phases() const = 0;  // phases of F, and as many of B; 1: not divided
  virtual void forward_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& y) = 0;
  virtual void backward_input_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                                    const Tensor& dx) = 0;
};

// Null for a block of a single phase.
inline Phased* phased(Block& block) {
  auto* found = dynamic_cast<Phased*>(&block);
  return found && found->phases() > 1 ? found : nullptr;
}

}  // namespace tera
