#include "tera/nn/heads/mtp.h"

#include "tera/base/error.h"

namespace tera {

MtpInput::MtpInput(ParamStore& params, const MtpInputSpec& spec, const TensorParallel& tp, Param* table)
    : embedding_(params, spec.embedding, tp, table),
      embedding_norm_(params, spec.embedding_norm, tp),
      hidden_norm_(params, spec.hidden_norm, tp),
      project_(params, spec.project, tp) {}

void MtpInput::f(Run& run, MtpInputSaved& s, const Tensor& x, const Tensor& y) {
  const std::int64_t rows = x.dim(0), hidden = x.dim(1);
  s.embedded = run.stash.take(Life::f_to_b, x.shape, x.dtype, "mtp.embedded");
  s.joined = run.stash.take(Life::f_to_w, shape(rows, 2 * hidden), x.dtype, "mtp.joined");
  s.embedding_stats = embedding_norm_.take_stats(run, s.embedded, "mtp.norm_stats");
  s.hidden_stats = hidden_norm_.take_stats(run, x, "mtp.norm_stats");
  {
    ScratchScope scope(run.scratch);
    embedding_.forward(run, s.lookup, {}, s.embedded);
  }
  embedding_norm_.forward(run, s.embedded, s.joined.slice(1, 0, hidden), s.embedding_stats);
  hidden_norm_.forward(run, x, s.joined.slice(1, hidden, 2 * hidden), s.hidden_stats);
  project_.forward(run, s.joined, y);
}

void MtpInput::b(Run& run, MtpInputSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  const std::int64_t hidden = x.dim(1);
  s.dembedded = run.stash.take(Life::b_to_w, x.shape, x.dtype, "mtp.dembedded");
  const Tensor djoined = run.scratch.take(shape(x.dim(0), 2 * hidden), x.dtype, "mtp.djoined");
  run.ops.wait(project_.backward_input(run, dy, djoined));
  embedding_norm_.backward(run, djoined.slice(1, 0, hidden), s.embedded, s.embedding_stats, {}, s.dembedded);
  hidden_norm_.backward(run, djoined.slice(1, hidden, 2 * hidden), x, s.hidden_stats, {}, dx);
}

void MtpInput::w(Run& run, MtpInputSaved& s, const Tensor& dy) {
  project_.backward_weight(run, s.joined, dy);
  embedding_.backward_weight(run, s.lookup, s.dembedded);
}

std::unique_ptr<Saved> Mtp::make_saved() const {
  auto saved = std::make_unique<MtpSaved>();
  saved->inner = inner_->make_saved();
  return saved;
}

MicroBatch Mtp::shifted(const MicroBatch& mb) const {
  require(depth_ <= mb.mtp.size(), "a microbatch has rows of {} depths ahead, and a layer is of depth {}",
          mb.mtp.size(), depth_);
  const MtpRows& rows = mb.mtp[depth_ - 1];
  MicroBatch of_depth = mb;
  of_depth.tokens = rows.tokens;
  of_depth.targets = rows.targets;
  of_depth.token_loss = rows.token_loss;
  of_depth.loss_scale = rows.loss_scale;
  return of_depth;
}

// Makes a call with the microbatch of this depth.
template <class Call>
void Mtp::with_shifted(Run& run, const Call& call) const {
  const MicroBatch mb = shifted(run.mb);
  Run of_depth{run.ops, run.stash, run.scratch, mb, run.w_follows, run.w_in_b};
  call(of_depth);
}

void Mtp::f(Run& run, MtpSaved& s, const Tensor& x, const Tensor& y) {
  if (run.mb.training) with_shifted(run, [&](Run& of_depth) { inner_->forward(of_depth, *s.inner, x, y); });
}

void Mtp::b(Run& run, MtpSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  with_shifted(run, [&](Run& of_depth) { inner_->backward_input(of_depth, *s.inner, x, dy, dx); });
}

void Mtp::w(Run& run, MtpSaved& s, const Tensor& dy) {
  with_shifted(run, [&](Run& of_depth) { inner_->backward_weight(of_depth, *s.inner, dy); });
}

void Mtp::forward_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& y) {
  Saved& inner = *static_cast<MtpSaved&>(saved).inner;
  with_shifted(run, [&](Run& of_depth) { phased_->forward_phase(phase, of_depth, inner, x, y); });
}

void Mtp::backward_input_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  Saved& inner = *static_cast<MtpSaved&>(saved).inner;
  with_shifted(run, [&](Run& of_depth) { phased_->backward_input_phase(phase, of_depth, inner, x, dy, dx); });
}

}  // namespace tera
