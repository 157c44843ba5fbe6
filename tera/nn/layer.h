#pragma once
// Blocks one after the other, seen as one: a layer is its sublayers, and layers that are recomputed together are such a
// chain too.

#include <vector>

#include "tera/nn/phased.h"

namespace tera {

struct ChainSaved final : Saved {
  std::vector<std::unique_ptr<Saved>> links;
  std::vector<Tensor> mid, dmid;  // [T,H]: between the links
  std::size_t mark = 0;           // position in scratch when the current link began
};

// It has phases where links have some: the last phase of one link and the first of the next are one phase.
class Chain final : public BlockOf<ChainSaved>, public Phased {
 public:
  Chain(const char* kind, std::vector<std::unique_ptr<Block>> links);
  std::unique_ptr<Saved> make_saved() const override;
  const char* kind() const override { return kind_; }

  int phases() const override { return phases_; }
  void forward_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& y) override;
  void backward_input_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                            const Tensor& dx) override;

 private:
  void f(Run& run, ChainSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, ChainSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, ChainSaved& saved, const Tensor& dy) override;

  void f_phase(int phase, Run& run, ChainSaved& saved, const Tensor& x, const Tensor& y);
  void b_phase(int phase, Run& run, ChainSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx);
  int phases_of(std::size_t link) const { return phased_links_[link] ? phased_links_[link]->phases() : 1; }

  const char* kind_;
  std::vector<std::unique_ptr<Block>> links_;
  std::vector<Phased*> phased_links_;  // the links that have phases; null for the others
  int phases_ = 1;
};

}  // namespace tera
