#pragma once
// What one microbatch on one chunk keeps between its actions: F forward, B input gradient, W weight gradient.
//
//             F            B            W
//   f_to_b    take ------- give back
//   f_to_w    take --------------------- give back
//   b_to_w                 take -------- give back
//
// Three slabs, because a schedule that delays W must not keep what only B needs. A fourth, replay, is empty between
// actions: recompute runs its inner forward there.

#include <string_view>

#include "tera/tensor/arena.h"

namespace tera {

enum class Life : std::uint8_t { f_to_b, f_to_w, b_to_w };

// Memory beside the stash's own for some of what is taken: for tensors that leave the device between F and B.
struct StashDetour {
  virtual ~StashDetour() = default;
  virtual Tensor take(Life life, const Shape& shape, DType dtype, std::string_view tag) = 0;  // none: not of these
};

class Stash {
 public:
  Stash(Arena& f_to_b, Arena& f_to_w, Arena& b_to_w, Arena& replay, StashDetour* detour = nullptr)
      : f_to_b_(&f_to_b), f_to_w_(&f_to_w), b_to_w_(&b_to_w), replay_(&replay), detour_(detour) {}

  Tensor take(Life life, const Shape& shape, DType dtype, std::string_view tag) {
    if (detour_)
      if (const Tensor taken = detour_->take(life, shape, dtype, tag)) return taken;
    return arena(life).take(shape, dtype, tag);
  }
  Arena& arena(Life life) { return life == Life::f_to_b ? *f_to_b_ : life == Life::f_to_w ? *f_to_w_ : *b_to_w_; }
  Arena& replay() { return *replay_; }

 private:
  Arena *f_to_b_, *f_to_w_, *b_to_w_, *replay_;
  StashDetour* detour_;
};

}  // namespace tera
