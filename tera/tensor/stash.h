#pragma once
// The stash: activations that one microbatch on one chunk keeps between its actions F (forward), B (input gradient) and
// W (weight gradient).
//
//             F            B            W
//   f_to_b    take ------- free
//   f_to_w    take --------------------- free
//   b_to_w                 take -------- free
//
// Three slabs, because a zero-bubble schedule, which delays W, must not keep what only B needs. A fourth, replay, is
// empty between actions: activation recomputation runs its inner forward there.

#include <string_view>

#include "tera/tensor/arena.h"

namespace tera {

enum class Life : std::uint8_t { f_to_b, f_to_w, b_to_w };

// Other memory for some tensors of a stash: those that are offloaded to the host between F and B.
struct StashRedirect {
  virtual ~StashRedirect() = default;
  virtual Tensor take(Life life, const Shape& shape, DType dtype, std::string_view tag) = 0;  // none: not offloaded
};

class Stash {
 public:
  Stash(Arena& f_to_b, Arena& f_to_w, Arena& b_to_w, Arena& replay, StashRedirect* redirect = nullptr)
      : f_to_b_(&f_to_b), f_to_w_(&f_to_w), b_to_w_(&b_to_w), replay_(&replay), redirect_(redirect) {}

  Tensor take(Life life, const Shape& shape, DType dtype, std::string_view tag) {
    if (redirect_)
      if (const Tensor taken = redirect_->take(life, shape, dtype, tag)) return taken;
    return arena(life).take(shape, dtype, tag);
  }
  Arena& arena(Life life) { return life == Life::f_to_b ? *f_to_b_ : life == Life::f_to_w ? *f_to_w_ : *b_to_w_; }
  Arena& replay() { return *replay_; }

 private:
  Arena *f_to_b_, *f_to_w_, *b_to_w_, *replay_;
  StashRedirect* redirect_;
};

}  // namespace tera
