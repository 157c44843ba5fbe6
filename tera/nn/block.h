#pragma once
// The contract of every block: one step of the residual stream, and the unit of pipeline parallelism, of activation
// recomputation and of ZeRO-3 gathering. Backward is split (zero bubble): B makes the gradient of the input, W that of
// the weights. Blocks keep no state between calls; what backward needs stands in a Saved struct of their own.
//
// Four rules, all kept by the engine, none by blocks: x stays valid until the block's B; dy stays valid until its W;
// scratch is rewound after each call; anything else needed later is taken from the stash. Outputs are passed in, so a
// value is written once, where it will live. Gradients of small parameters (norms, biases) finish in B; W is for GEMMs.

#include <memory>

#include "tera/nn/run.h"

namespace tera {

struct Saved {
  virtual ~Saved() = default;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual const char* kind() const = 0;                        // "attention": its name in profiles
  virtual bool makes_gradients_in_f() const { return false; }  // F of a training step makes weight gradients already
  virtual std::unique_ptr<Saved> make_saved() const = 0;
  virtual void forward(Run& run, Saved& saved, const Tensor& x, const Tensor& y) = 0;
  virtual void backward_input(Run& run, Saved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) = 0;
  virtual void backward_weight(Run& run, Saved& saved, const Tensor& dy) = 0;
};

// Casts once and names the range for profiles; blocks write f, b, w on their own struct.
template <class S>
class BlockOf : public Block {
 public:
  std::unique_ptr<Saved> make_saved() const override { return std::make_unique<S>(); }
  void forward(Run& run, Saved& saved, const Tensor& x, const Tensor& y) final {
    RangeScope range(run.ops, kind());
    f(run, static_cast<S&>(saved), x, y);
  }
  void backward_input(Run& run, Saved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) final {
    RangeScope range(run.ops, kind());
    b(run, static_cast<S&>(saved), x, dy, dx);
  }
  void backward_weight(Run& run, Saved& saved, const Tensor& dy) final {
    RangeScope range(run.ops, kind());
    w(run, static_cast<S&>(saved), dy);
  }

 protected:
  virtual void f(Run& run, S& saved, const Tensor& x, const Tensor& y) = 0;
  virtual void b(Run& run, S& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) = 0;
  virtual void w(Run& run, S& saved, const Tensor& dy) = 0;
};

}  // namespace tera
