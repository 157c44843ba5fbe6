#include "tera/nn/head.h"

#include <algorithm>

#include "tera/nn/embedding.h"

namespace tera {

Head::Head(ParamStore& params, const HeadSpec& spec, Param* tied)
    : norm_(params, spec.norm), softmax_width_(spec.pad_vocab_in_softmax ? spec.padded_vocab : spec.vocab) {
  const Init init{.kind = Init::Kind::normal, .std = spec.init_std, .padding = spec.pad_vocab_in_softmax};
  weight_ =
      tied ? tied
           : &params.add(vocabulary_table(spec.name + ".weight", spec.vocab, spec.padded_vocab, spec.hidden, init));
}

// Few chunks, because each reads and writes the whole weight gradient; of even size, in multiples of 64 rows.
std::int64_t Head::chunk_rows(std::int64_t tokens, std::int64_t padded_vocab, std::int64_t chunk_elements) {
  constexpr std::int64_t multiple = 64;
  const std::int64_t most = std::max(chunk_elements / padded_vocab / multiple * multiple, multiple);
  const std::int64_t chunks = (tokens + most - 1) / most, even = (tokens + chunks - 1) / chunks;
  return std::min((even + multiple - 1) / multiple * multiple, tokens);
}

void Head::f(Run& run, HeadSaved& s, const Tensor& x, const Tensor& /*y*/) {
  const Tensor normed = run.scratch.take(x.shape, x.dtype, "head.normed");
  s.stats = norm_.take_stats(run, x, "head.norm_stats");
  norm_.forward(run, x, normed, s.stats);
  if (run.mb.logits) write_logits(run, normed);
  if (!run.mb.targets) return;
  if (run.mb.training) s.dnormed = run.stash.take(Life::f_to_b, x.shape, x.dtype, "head.dnormed");
  const std::int64_t step = chunk_rows(x.dim(0), weight_->value.dim(0), run.ops.traits().logits_chunk);
  for (std::int64_t begin = 0; begin < x.dim(0); begin += step) {
    ScratchScope scope(run.scratch);
    chunk(run, s, normed, begin, std::min(begin + step, x.dim(0)));
  }
}

void Head::chunk(Run& run, HeadSaved& s, const Tensor& normed, std::int64_t begin, std::int64_t end) {
  const Tensor rows = normed.rows(begin, end);
  const Tensor logits = run.scratch.take(shape(end - begin, weight_->value.dim(0)), normed.dtype, "head.logits");
  run.ops.gemm({.a = rows, .b = weight_->value, .out = logits, .trans_b = true});
  run.ops.cross_entropy({.logits = logits,
                         .targets = run.mb.targets.rows(begin, end),
                         .token_loss = run.mb.token_loss.rows(begin, end),
                         .scale = run.mb.loss_scale,
                         .vocab = softmax_width_,
                         .loss_only = !run.mb.training});
  if (!run.mb.training) return;
  run.ops.gemm({.a = logits, .b = weight_->value, .out = s.dnormed.rows(begin, end)});  // logits are their gradient now
  if (weight_->grad) run.ops.gemm({.a = logits, .b = rows, .out = weight_->grad, .trans_a = true, .accumulate = true});
}

void Head::write_logits(Run& run, const Tensor& normed) {
  const std::int64_t last = normed.dim(0);
  run.ops.gemm({.a = normed.rows(last - run.mb.logits.dim(0), last),
                .b = weight_->value,
                .out = run.mb.logits,
                .trans_b = true});
}

void Head::b(Run& run, HeadSaved& s, const Tensor& x, const Tensor& /*dy*/, const Tensor& dx) {
  norm_.backward(run, s.dnormed, x, s.stats, {}, dx);
}

void Head::w(Run& /*run*/, HeadSaved& /*saved*/, const Tensor& /*dy*/) {}

}  // namespace tera
