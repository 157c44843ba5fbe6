#include "tera/nn/recompute.h"

namespace tera {

std::unique_ptr<Saved> Recompute::make_saved() const {
  auto saved = std::make_unique<RecomputeSaved>();
  saved->inner = inner_->make_saved();
  return saved;
}

void Recompute::f(Run& run, RecomputeSaved& s, const Tensor& x, const Tensor& y) {
  ScratchScope scope(run.stash.replay());
  Arena& replay = run.stash.replay();
  Stash nothing_kept(replay, replay, replay, replay);
  Run inner{run.ops, nothing_kept, run.scratch, run.mb};
  inner_->forward(inner, *s.inner, x, y);
}

void Recompute::b(Run& run, RecomputeSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  ScratchScope scope(run.stash.replay());
  Arena& until_w = run.stash.arena(Life::b_to_w);
  Stash stash(run.stash.replay(), until_w, until_w, run.stash.replay());
  Run inner{run.ops, stash, run.scratch, run.mb, run.w_follows, run.w_in_b};
  {
    ScratchScope forward_scope(run.scratch);
    const Tensor y = run.scratch.take(x.shape, x.dtype, "recompute.y");  // nobody reads it, but forward writes it
    inner_->forward(inner, *s.inner, x, y);
  }
  inner_->backward_input(inner, *s.inner, x, dy, dx);
}

void Recompute::w(Run& run, RecomputeSaved& s, const Tensor& dy) { inner_->backward_weight(run, *s.inner, dy); }

}  // namespace tera
