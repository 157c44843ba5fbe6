#pragma once
// A mixer, then a feed-forward: y = ffn(mixer(x)). Both carry their own norm and residual.

#include "tera/nn/block.h"

namespace tera {

struct LayerSaved final : Saved {
  std::unique_ptr<Saved> mixer, ffn;
  Tensor mid, dmid;  // [T,H]: between the two
};

class Layer final : public BlockOf<LayerSaved> {
 public:
  Layer(std::unique_ptr<Block> mixer, std::unique_ptr<Block> ffn);
  std::unique_ptr<Saved> make_saved() const override;
  const char* kind() const override { return "layer"; }

 private:
  void f(Run& run, LayerSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, LayerSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, LayerSaved& saved, const Tensor& dy) override;

  std::unique_ptr<Block> mixer_, ffn_;
};

}  // namespace tera
