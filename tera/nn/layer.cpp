#include "tera/nn/layer.h"

namespace tera {

Chain::Chain(const char* kind, std::vector<std::unique_ptr<Block>> links) : kind_(kind), links_(std::move(links)) {}

std::unique_ptr<Saved> Chain::make_saved() const {
  auto saved = std::make_unique<ChainSaved>();
  for (const auto& link : links_) saved->links.push_back(link->make_saved());
  saved->mid.resize(links_.size() - 1);
  saved->dmid.resize(links_.size() - 1);
  return saved;
}

void Chain::f(Run& run, ChainSaved& s, const Tensor& x, const Tensor& y) {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const bool last = i + 1 == links_.size();
    if (!last) s.mid[i] = run.stash.take(Life::f_to_b, x.shape, x.dtype, "layer.mid");
    ScratchScope scope(run.scratch);
    links_[i]->forward(run, *s.links[i], i == 0 ? x : s.mid[i - 1], last ? y : s.mid[i]);
  }
}

void Chain::b(Run& run, ChainSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  for (std::size_t i = links_.size(); i-- > 0;) {
    const bool last = i + 1 == links_.size();
    if (i > 0) s.dmid[i - 1] = run.stash.take(Life::b_to_w, x.shape, x.dtype, "layer.dmid");
    ScratchScope scope(run.scratch);
    links_[i]->backward_input(run, *s.links[i], i == 0 ? x : s.mid[i - 1], last ? dy : s.dmid[i],
                              i == 0 ? dx : s.dmid[i - 1]);
  }
}

void Chain::w(Run& run, ChainSaved& s, const Tensor& dy) {
  for (std::size_t i = links_.size(); i-- > 0;) {
    ScratchScope scope(run.scratch);
    links_[i]->backward_weight(run, *s.links[i], i + 1 == links_.size() ? dy : s.dmid[i]);
  }
}

std::unique_ptr<Block> make_layer(std::unique_ptr<Block> mixer, std::unique_ptr<Block> ffn) {
  std::vector<std::unique_ptr<Block>> links;
  links.push_back(std::move(mixer));
  links.push_back(std::move(ffn));
  return std::make_unique<Chain>("layer", std::move(links));
}

}  // namespace tera
