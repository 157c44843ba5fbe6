#pragma once
// Blocks one after the other, seen as one: a layer is a mixer, then a feed-forward, each with its own norm and
// residual; layers that are recomputed together are such a chain too.

#include <vector>

#include "tera/nn/parts.h"

namespace tera {

struct ChainSaved final : Saved {
  std::vector<std::unique_ptr<Saved>> links;
  std::vector<Tensor> mid, dmid;  // [T,H]: between the links
  std::size_t mark = 0;           // of scratch, when the link began that is being played
};

// In parts where links are: what lies between the cuts of one and of the next is one part.
class Chain final : public BlockOf<ChainSaved>, public InParts {
 public:
  Chain(const char* kind, std::vector<std::unique_ptr<Block>> links);
  std::unique_ptr<Saved> make_saved() const override;
  const char* kind() const override { return kind_; }

  int parts() const override { return parts_; }
  void forward_part(int part, Run& run, Saved& saved, const Tensor& x, const Tensor& y) override;
  void backward_input_part(int part, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                           const Tensor& dx) override;

 private:
  void f(Run& run, ChainSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, ChainSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, ChainSaved& saved, const Tensor& dy) override;

  void f_part(int part, Run& run, ChainSaved& saved, const Tensor& x, const Tensor& y);
  void b_part(int part, Run& run, ChainSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx);
  int parts_of(std::size_t link) const { return cut_[link] ? cut_[link]->parts() : 1; }

  const char* kind_;
  std::vector<std::unique_ptr<Block>> links_;
  std::vector<InParts*> cut_;  // the same where they are in parts, else none
  int parts_ = 1;
};

// A mixer and a feed-forward.
std::unique_ptr<Block> make_layer(std::unique_ptr<Block> mixer, std::unique_ptr<Block> ffn);

}  // namespace tera
