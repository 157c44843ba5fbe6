#include "tera/nn/layer.h"

namespace tera {

Chain::Chain(const char* kind, std::vector<std::unique_ptr<Block>> links) : kind_(kind), links_(std::move(links)) {
  for (const auto& link : links_) {
    phased_links_.push_back(phased(*link));
    phases_ += phases_of(phased_links_.size() - 1) - 1;
  }
}

std::unique_ptr<Saved> Chain::make_saved() const {
  auto saved = std::make_unique<ChainSaved>();
  for (const auto& link : links_) saved->links.push_back(link->make_saved());
  saved->mid.resize(links_.size() - 1);
  saved->dmid.resize(links_.size() - 1);
  return saved;
}

void Chain::f(Run& run, ChainSaved& s, const Tensor& x, const Tensor& y) {
  for (int phase = 0; phase < phases_; ++phase) f_phase(phase, run, s, x, y);
}

void Chain::b(Run& run, ChainSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  for (int phase = 0; phase < phases_; ++phase) b_phase(phase, run, s, x, dy, dx);
}

void Chain::forward_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& y) {
  RangeScope range(run.ops, kind());
  f_phase(phase, run, static_cast<ChainSaved&>(saved), x, y);
}

void Chain::backward_input_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                                 const Tensor& dx) {
  RangeScope range(run.ops, kind());
  b_phase(phase, run, static_cast<ChainSaved&>(saved), x, dy, dx);
}

// The last part of a link and the first of the next are in the same part of the chain.
void Chain::f_phase(int phase, Run& run, ChainSaved& s, const Tensor& x, const Tensor& y) {
  int first = 0;  // part of the chain in which a link begins
  for (std::size_t i = 0; i < links_.size(); first += phases_of(i) - 1, ++i) {
    const int inner = phase - first;
    if (inner < 0 || inner >= phases_of(i)) continue;
    const bool last = i + 1 == links_.size();
    if (inner == 0) {
      if (!last) s.mid[i] = run.stash.take(Life::f_to_b, x.shape, x.dtype, "layer.mid");
      s.mark = run.scratch.mark();
    }
    const Tensor &in = i == 0 ? x : s.mid[i - 1], &out = last ? y : s.mid[i];
    if (phased_links_[i])
      phased_links_[i]->forward_phase(inner, run, *s.links[i], in, out);
    else
      links_[i]->forward(run, *s.links[i], in, out);
    if (inner + 1 == phases_of(i)) run.scratch.rewind(s.mark);
  }
}

void Chain::b_phase(int phase, Run& run, ChainSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  int first = 0;
  for (std::size_t i = links_.size(); i-- > 0; first += phases_of(i) - 1) {
    const int inner = phase - first;
    if (inner < 0 || inner >= phases_of(i)) continue;
    if (inner == 0) {
      if (i > 0) s.dmid[i - 1] = run.stash.take(Life::b_to_w, x.shape, x.dtype, "layer.dmid");
      s.mark = run.scratch.mark();
    }
    const Tensor &in = i == 0 ? x : s.mid[i - 1], &din = i == 0 ? dx : s.dmid[i - 1];
    const Tensor& dout = i + 1 == links_.size() ? dy : s.dmid[i];
    if (phased_links_[i])
      phased_links_[i]->backward_input_phase(inner, run, *s.links[i], in, dout, din);
    else
      links_[i]->backward_input(run, *s.links[i], in, dout, din);
    if (inner + 1 == phases_of(i)) run.scratch.rewind(s.mark);
  }
}

void Chain::w(Run& run, ChainSaved& s, const Tensor& dy) {
  for (std::size_t i = links_.size(); i-- > 0;) {
    ScratchScope scope(run.scratch);
    links_[i]->backward_weight(run, *s.links[i], i + 1 == links_.size() ? dy : s.dmid[i]);
  }
}

}  // namespace tera
