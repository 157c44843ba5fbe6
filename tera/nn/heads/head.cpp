#include "tera/nn/heads/head.h"

#include <algorithm>
#include <array>

#include "tera/nn/embeddings/embedding.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/gemm.h"
#include "tera/ops/loss.h"

namespace tera {

Head::Head(ParamStore& params, const HeadSpec& spec, Param* tied, const TensorParallel& tp)
    : tp_(tp),
      norm_(params, spec.norm, tp),
      weight_(tied),
      softmax_width_(spec.pad_vocab_in_softmax ? spec.padded_vocab : spec.vocab) {
  if (tied) {
    params.share(*tied);
    return;
  }
  const VocabularyTable table{
      .name = spec.name + ".weight",
      .vocab = spec.vocab,
      .padded_vocab = spec.padded_vocab,
      .hidden = spec.hidden,
      .init = {.kind = Init::Kind::normal, .std = spec.init_std, .padding = spec.pad_vocab_in_softmax}};
  weight_ = &params.add(table.spec(tp));
  weight_->spec.on_another_stage = weight_->spec.norm_counted_elsewhere = spec.tied_elsewhere;
}

// Few chunks, because each reads and writes the full weight gradient; of even size, in multiples of 64 rows.
std::int64_t Head::chunk_rows(std::int64_t tokens, std::int64_t padded_vocab, std::int64_t chunk_elements) {
  constexpr std::int64_t multiple = 64;
  const std::int64_t max_rows = std::max(chunk_elements / padded_vocab / multiple * multiple, multiple);
  const std::int64_t chunks = (tokens + max_rows - 1) / max_rows, even = (tokens + chunks - 1) / chunks;
  return std::min((even + multiple - 1) / multiple * multiple, tokens);
}

void Head::f(Run& run, HeadSaved& s, const Tensor& x, const Tensor& y) {
  const Tensor local = y ? y : run.scratch.take(x.shape, x.dtype, "head.normed");
  s.stats = norm_.take_stats(run, x, "head.norm_stats");
  norm_.forward(run, x, local, s.stats);
  const Tensor normed = tp_.gather(run, local, run.scratch, "head.normed");
  if (run.mb.logits) write_logits(run, normed);
  if (!run.mb.targets) return;
  Tensor dnormed;
  if (run.mb.training) {
    s.dnormed = run.stash.take(Life::f_to_b, x.shape, x.dtype, "head.dnormed");
    dnormed = tp_.partial_buffer(run, s.dnormed, "head.dnormed");
  }
  const std::int64_t rows = normed.dim(0);
  const std::int64_t step = chunk_rows(rows, weight_->value.dim(0), run.ops.traits().logits_chunk);
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    ScratchScope scope(run.scratch);
    chunk(run, normed, dnormed, begin, std::min(begin + step, rows));
  }
  if (dnormed) run.ops.wait(tp_.reduce(run, dnormed, s.dnormed));
}

void Head::chunk(Run& run, const Tensor& normed, const Tensor& dnormed, std::int64_t begin, std::int64_t end) {
  const Tensor rows = normed.rows(begin, end);
  const Tensor logits = run.scratch.take(shape(end - begin, weight_->value.dim(0)), normed.dtype, "head.logits");
  run.ops(GemmArgs{.a = rows, .b = weight_->value, .out = logits, .trans_b = true});
  losses(run, logits, begin, end);
  if (!run.mb.training) return;
  run.ops(GemmArgs{.a = logits,
                   .b = weight_->value,
                   .out = dnormed.rows(begin, end)});  // cross_entropy wrote the gradient over the logits
  if (!weight_->grad) return;
  run.ops(GemmArgs{
      .a = logits, .b = rows, .out = weight_->grad, .trans_a = true, .accumulate = weight_->accumulate_next()});
}

// Vocabulary-parallel cross entropy: each row's maximum, sum and target logit are merged from those of all ranks.
void Head::losses(Run& run, const Tensor& logits, std::int64_t begin, std::int64_t end) {
  CrossEntropyArgs args{.logits = logits,
                        .targets = run.mb.targets.rows(begin, end),
                        .token_loss = run.mb.token_loss.rows(begin, end),
                        .scale = run.mb.loss_scale,
                        .vocab = softmax_width_,
                        .loss_only = !run.mb.training};
  if (tp_.size() > 1) {
    const std::int64_t rows = end - begin, rank = tp_.rank();
    const Tensor all = run.scratch.take(shape(tp_.size() * rows, 3), DType::f32, "head.softmax_stats");
    const Tensor local = all.rows(rank * rows, (rank + 1) * rows);
    args.first = weight_->spec.parts[0].begin;
    run.ops(CrossEntropyStatsArgs{
        .logits = logits, .targets = args.targets, .stats = local, .first = args.first, .vocab = softmax_width_});
    run.ops.wait(tp_.group->all_gather(local, all, run.ops.record()));
    args.stats = all.view(shape(tp_.size(), rows, 3));
  }
  run.ops(args);
}

void Head::write_logits(Run& run, const Tensor& normed) {
  const std::int64_t last = normed.dim(0), rows = run.mb.logits.dim(0), columns = weight_->value.dim(0);
  const Tensor x = normed.rows(last - rows, last);
  if (tp_.size() == 1) return run.ops(GemmArgs{.a = x, .b = weight_->value, .out = run.mb.logits, .trans_b = true});
  ScratchScope scope(run.scratch);
  const Tensor all = run.scratch.take(shape(tp_.size() * rows, columns), DType::f32, "head.all_logits");
  const auto of_rank = [&](std::int64_t rank) { return all.rows(rank * rows, (rank + 1) * rows); };
  run.ops(GemmArgs{.a = x, .b = weight_->value, .out = of_rank(tp_.rank()), .trans_b = true});
  run.ops.wait(tp_.group->all_gather(of_rank(tp_.rank()), all, run.ops.record()));
  for (std::int64_t rank = 0; rank < tp_.size(); ++rank)
    run.ops(CopyArgs{.src = of_rank(rank), .dst = run.mb.logits.slice(1, rank * columns, (rank + 1) * columns)});
}

void Head::b(Run& run, HeadSaved& s, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  if (dy) {
    const std::array sources{s.dnormed, dy};
    run.ops(CombineArgs{.sources = sources, .out = s.dnormed});
  }
  norm_.backward(run, s.dnormed, x, s.stats, {}, dx);
}

void Head::w(Run& /*run*/, HeadSaved& /*saved*/, const Tensor& /*dy*/) {}

}  // namespace tera
