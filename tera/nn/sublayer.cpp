#include "tera/nn/sublayer.h"

#include <algorithm>
#include <array>

#include "tera/base/error.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/pointwise.h"

namespace tera {

// What one call of a branch is given: the input in Saved, with what is needed to make it.
class Sublayer::Input final : public BranchInput {
 public:
  enum class Call : std::uint8_t { f, b, w };
  Input(const Sublayer& sublayer, std::size_t branch, SublayerSaved& saved, const Tensor& x, Call call)
      : norm_(sublayer.norm_of(sublayer.branches_[branch].input)),
        tags_(sublayer.branches_[branch].tags),
        saved_(saved.inputs[sublayer.branches_[branch].input]),
        x_(x),
        call_(call),
        keeps_(!sublayer.recompute_norm_),
        is_added_(sublayer.is_added_in_b(branch)) {}

  Tensor get(Run& run) override {
    if (saved_.normed) return saved_.normed;
    if (!norm_) return x_;
    if (call_ == Call::f) saved_.stats = norm_->take_stats(run, x_, tags_.stats);
    saved_.normed = call_ == Call::b ? run.stash.take(Life::b_to_w, x_.shape, x_.dtype, tags_.normed)
                    : keeps_         ? run.stash.take(Life::f_to_w, x_.shape, x_.dtype, tags_.normed)
                                     : run.scratch.take(x_.shape, x_.dtype, tags_.normed);
    norm_->forward(run, x_, saved_.normed, saved_.stats);
    return saved_.normed;
  }

  Tensor gradient(Run& run) override {
    Tensor& here = is_added_ ? saved_.addend : saved_.gradient;
    if (!here) here = run.scratch.take(x_.shape, x_.dtype, tags_.dnormed);
    return here;
  }

  // At the end of B: x may be gone in W.
  void keep_for_w(Run& run) {
    if (norm_) {
      get(run);
      return;
    }
    saved_.normed = run.stash.take(Life::b_to_w, x_.shape, x_.dtype, tags_.normed);
    run.ops(CopyArgs{.src = x_, .dst = saved_.normed});
  }

 private:
  const Norm* norm_;
  const Tags& tags_;
  SublayerSaved::Input& saved_;
  Tensor x_;
  Call call_;
  bool keeps_, is_added_;
};

Sublayer::Sublayer(const SublayerSpec& spec, const BuildContext& context)
    : tp_(context.tp), post_at_(spec.post_at), dropout_(spec.dropout), recompute_norm_(spec.recompute_norm) {
  const auto add_norm = [&](const std::optional<NormSpec>& norm) {
    norms_.emplace_back();
    if (norm) norms_.back().emplace(context.params, *norm, tp_);
    return norms_.size() - 1;
  };
  std::optional<std::size_t> shared;
  for (const BranchUse& use : spec.branches) {
    if (!use.norm && !shared) shared = add_norm(spec.norm);
    const std::size_t input = use.norm ? add_norm(use.norm) : *shared;
    branches_.push_back({.branch = use.branch.build(context),
                         .input = input,
                         .dropout_key = rng_stream(spec.seed, use.name + ".hidden_dropout"),
                         .tags = {}});
    const std::string kind = branches_.back().branch->kind();
    branches_.back().tags = {.stats = kind + ".norm_stats",
                             .normed = kind + ".normed",
                             .dnormed = kind + ".dnormed",
                             .dropped = kind + ".ddropout",
                             .before_post = kind + ".before_post_norm",
                             .post_stats = kind + ".post_norm_stats",
                             .dpost = kind + ".dpost_norm",
                             .sum = kind + ".sum"};
    kind_ += (kind_.empty() ? "" : "+") + kind;
  }
  if (spec.post_norm) post_norm_.emplace(context.params, *spec.post_norm, tp_);
  require(!norms_branch() || branches_.size() == 1, "a norm behind each of {} branches; there may be one",
          branches_.size());
}

std::unique_ptr<Saved> Sublayer::make_saved() const {
  auto saved = std::make_unique<SublayerSaved>();
  saved->inputs.resize(norms_.size());
  for (const UsedBranch& used : branches_) saved->branches.push_back({.saved = used.branch->make_saved(), .dy = {}});
  return saved;
}

// B runs the branches from the last one to the first, and adds up the gradients of what they share.
bool Sublayer::is_added_in_b(std::size_t index) const {
  for (std::size_t i = index + 1; i < branches_.size(); ++i)
    if (branches_[i].input == branches_[index].input) return true;
  return false;
}

bool Sublayer::completes_input_in_b(std::size_t index) const {
  for (std::size_t i = 0; i < index; ++i)
    if (branches_[i].input == branches_[index].input) return false;
  return true;
}

void Sublayer::f(Run& run, SublayerSaved& s, const Tensor& x, const Tensor& y) {
  for (int phase = 0; phase < phases(); ++phase) f_phase(phase, run, s, x, y);
}

void Sublayer::b(Run& run, SublayerSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  for (int phase = 0; phase < phases(); ++phase) b_phase(phase, run, s, x, dy, dx);
}

void Sublayer::forward_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& y) {
  RangeScope range(run.ops, kind());
  f_phase(phase, run, static_cast<SublayerSaved&>(saved), x, y);
}

void Sublayer::backward_input_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                                    const Tensor& dx) {
  RangeScope range(run.ops, kind());
  b_phase(phase, run, static_cast<SublayerSaved&>(saved), x, dy, dx);
}

void Sublayer::f_phase(int phase, Run& run, SublayerSaved& s, const Tensor& x, const Tensor& y) const {
  const Tags& tags = branches_.back().tags;
  if (phase == 0) {
    std::ranges::fill(s.inputs, SublayerSaved::Input{});
    if (post_norm_) s.before_post = run.stash.take(Life::f_to_b, x.shape, x.dtype, tags.before_post);
  }
  const Tensor& sum = norms_sum() ? s.before_post : y;
  if (branches_.size() == 1)
    forward_branch(0, phase, run, s, x, sum, x);
  else
    forward_branches(run, s, x, sum);
  if (phase + 1 < phases() || !norms_sum()) return;
  s.post_stats = post_norm_->take_stats(run, s.before_post, tags.post_stats);
  post_norm_->forward(run, s.before_post, y, s.post_stats);
}

void Sublayer::forward_branches(Run& run, SublayerSaved& s, const Tensor& x, const Tensor& y) const {
  Tensor sum = x;
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    const Tensor to = i + 1 == branches_.size() ? y : run.scratch.take(x.shape, x.dtype, branches_[i].tags.sum);
    Input(*this, i, s, x, Input::Call::f).get(run);  // outlives the branch's own scratch
    ScratchScope scope(run.scratch);
    for (int phase = 0; phase < branches_[i].branch->phases(); ++phase) forward_branch(i, phase, run, s, x, to, sum);
    sum = to;
  }
}

// y = residual + what the branch adds.
void Sublayer::forward_branch(std::size_t index, int phase, Run& run, SublayerSaved& s, const Tensor& x,
                              const Tensor& y, const Tensor& residual) const {
  const UsedBranch& used = branches_[index];
  Input input(*this, index, s, x, Input::Call::f);
  const bool adds_residual = !norms_branch() && !drops(run);
  used.branch->forward(phase, run, *s.branches[index].saved, input, norms_branch() ? s.before_post : y,
                       adds_residual ? residual : Tensor{});
  if (phase + 1 < used.branch->phases() || adds_residual) return;
  if (norms_branch()) {
    s.post_stats = post_norm_->take_stats(run, s.before_post, used.tags.post_stats);
    post_norm_->forward(run, s.before_post, y, s.post_stats);
  }
  if (drops(run)) return drop(used, run, y, y, residual);
  const std::array sources{residual, y};
  run.ops(CombineArgs{.sources = sources, .out = y});
}

void Sublayer::drop(const UsedBranch& used, Run& run, const Tensor& x, const Tensor& y, const Tensor& residual) const {
  run.ops(DropoutArgs{.x = x,
                      .y = y,
                      .residual = residual,
                      .rows = tp_.local_rows(run.mb.rows),
                      .rate = dropout_,
                      .key = used.dropout_key});
}

void Sublayer::b_phase(int phase, Run& run, SublayerSaved& s, const Tensor& x, const Tensor& dy,
                       const Tensor& dx) const {
  if (phase == 0) {
    for (std::size_t i = 0; i < s.inputs.size(); ++i) {
      s.inputs[i].gradient = s.inputs[i].addend = {};
      if (recompute_norm_ || !norms_[i]) s.inputs[i].normed = {};
    }
    s.dsum = dy;
    if (norms_sum()) {
      s.dsum = run.stash.take(Life::b_to_w, dy.shape, dy.dtype, branches_.back().tags.dpost);
      post_norm_->backward(run, dy, s.before_post, s.post_stats, {}, s.dsum);
    }
  }
  if (branches_.size() == 1) return backward_branch(0, phase, run, s, x, s.dsum, dx);
  Tensor residual = s.dsum;
  for (std::size_t i = branches_.size(); i-- > 0;) {
    Input(*this, i, s, x, Input::Call::b).gradient(run);  // outlives the branch's own scratch
    ScratchScope scope(run.scratch);
    for (int of_branch = 0; of_branch < branches_[i].branch->phases(); ++of_branch)
      backward_branch(i, of_branch, run, s, x, residual, dx);
    if (completes_input_in_b(i)) residual = dx;
  }
}

// Adds to `residual`, the gradient of what does not pass this branch's input, that of the input once it is complete.
void Sublayer::backward_branch(std::size_t index, int phase, Run& run, SublayerSaved& s, const Tensor& x,
                               const Tensor& residual, const Tensor& dx) const {
  const UsedBranch& used = branches_[index];
  SublayerSaved::OfBranch& of_branch = s.branches[index];
  if (phase == 0) of_branch.dy = gradient_of_branch(used, run, s);
  Input input(*this, index, s, x, Input::Call::b);
  const Ticket summed = used.branch->backward_input(phase, run, *of_branch.saved, input, of_branch.dy);
  if (phase + 1 < used.branch->phases()) return;
  if (completes_input_in_b(index)) input.keep_for_w(run);
  run.ops.wait(summed);
  SublayerSaved::Input& saved = s.inputs[used.input];
  if (is_added_in_b(index)) {
    const std::array sources{saved.gradient, saved.addend};
    run.ops(CombineArgs{.sources = sources, .out = saved.gradient});
  }
  if (!completes_input_in_b(index)) return;
  if (const Norm* norm = norm_of(used.input)) return norm->backward(run, saved.gradient, x, saved.stats, residual, dx);
  const std::array sources{residual, saved.gradient};
  run.ops(CombineArgs{.sources = sources, .out = dx});
}

// The gradient of what the branch makes: back through dropout and the norm behind it.
Tensor Sublayer::gradient_of_branch(const UsedBranch& used, Run& run, SublayerSaved& s) const {
  const auto take = [&](bool until_w, std::string_view tag) {
    return until_w ? run.stash.take(Life::b_to_w, s.dsum.shape, s.dsum.dtype, tag)
                   : run.scratch.take(s.dsum.shape, s.dsum.dtype, tag);
  };
  const bool until_w = used.branch->w_reads_dy(run);
  Tensor dy = s.dsum;
  if (drops(run)) {
    dy = take(until_w && !norms_branch(), used.tags.dropped);
    drop(used, run, s.dsum, dy, {});
  }
  if (!norms_branch()) return dy;
  const Tensor before = take(until_w, used.tags.dpost);
  post_norm_->backward(run, dy, s.before_post, s.post_stats, {}, before);
  return before;
}

void Sublayer::w(Run& run, SublayerSaved& s, const Tensor& /*dy*/) {
  for (std::size_t i = branches_.size(); i-- > 0;) {
    ScratchScope scope(run.scratch);
    Input input(*this, i, s, {}, Input::Call::w);
    branches_[i].branch->backward_weight(run, *s.branches[i].saved, input, s.branches[i].dy);
  }
}

}  // namespace tera
