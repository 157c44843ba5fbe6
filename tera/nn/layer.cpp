#include "tera/nn/layer.h"

namespace tera {

Layer::Layer(std::unique_ptr<Block> mixer, std::unique_ptr<Block> ffn)
    : mixer_(std::move(mixer)), ffn_(std::move(ffn)) {}

std::unique_ptr<Saved> Layer::make_saved() const {
  auto saved = std::make_unique<LayerSaved>();
  saved->mixer = mixer_->make_saved();
  saved->ffn = ffn_->make_saved();
  return saved;
}

void Layer::f(Run& run, LayerSaved& s, const Tensor& x, const Tensor& y) {
  s.mid = run.stash.take(Life::f_to_b, x.shape, x.dtype, "layer.mid");
  {
    ScratchScope scope(run.scratch);
    mixer_->forward(run, *s.mixer, x, s.mid);
  }
  ffn_->forward(run, *s.ffn, s.mid, y);
}

void Layer::b(Run& run, LayerSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  s.dmid = run.stash.take(Life::b_to_w, x.shape, x.dtype, "layer.dmid");
  {
    ScratchScope scope(run.scratch);
    ffn_->backward_input(run, *s.ffn, s.mid, dy, s.dmid);
  }
  mixer_->backward_input(run, *s.mixer, x, s.dmid, dx);
}

void Layer::w(Run& run, LayerSaved& s, const Tensor& dy) {
  ffn_->backward_weight(run, *s.ffn, dy);
  mixer_->backward_weight(run, *s.mixer, s.dmid);
}

}  // namespace tera
