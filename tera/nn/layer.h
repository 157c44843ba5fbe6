#pragma once
// Blocks one after the other, seen as one: a layer is a mixer, then a feed-forward, each with its own norm and
// residual; layers that are recomputed together are such a chain too.

#include <vector>

#include "tera/nn/block.h"

namespace tera {

struct ChainSaved final : Saved {
  std::vector<std::unique_ptr<Saved>> links;
  std::vector<Tensor> mid, dmid;  // [T,H]: between the links
};

class Chain final : public BlockOf<ChainSaved> {
 public:
  Chain(const char* kind, std::vector<std::unique_ptr<Block>> links);
  std::unique_ptr<Saved> make_saved() const override;
  const char* kind() const override { return kind_; }

 private:
  void f(Run& run, ChainSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, ChainSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, ChainSaved& saved, const Tensor& dy) override;

  const char* kind_;
  std::vector<std::unique_ptr<Block>> links_;
};

// A mixer and a feed-forward.
std::unique_ptr<Block> make_layer(std::unique_ptr<Block> mixer, std::unique_ptr<Block> ffn);

}  // namespace tera
