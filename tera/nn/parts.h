#pragma once
// A block whose F and B are cut into parts where they would wait for other ranks: between two parts somebody else's
// work can be asked for. All parts of a call are played in order, with the same arguments, and with scratch of their
// own that nobody rewinds in between; one after the other they are the call.

#include "tera/nn/block.h"

namespace tera {

class InParts {
 public:
  virtual ~InParts() = default;
  virtual int parts() const = 0;  // of F, and as many of B; 1: not cut
  virtual void forward_part(int part, Run& run, Saved& saved, const Tensor& x, const Tensor& y) = 0;
  virtual void backward_input_part(int part, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                                   const Tensor& dx) = 0;
};

// None where a block has but one part.
inline InParts* in_parts(Block& block) {
  auto* parts = dynamic_cast<InParts*>(&block);
  return parts && parts->parts() > 1 ? parts : nullptr;
}

}  // namespace tera
