#include "tera/nn/embeddings/embedding.h"

#include <algorithm>

#include "tera/ops/copy.h"
#include "tera/ops/embedding.h"
#include "tera/ops/pointwise.h"

namespace tera {

ParamSpec VocabularyTable::spec(const TensorParallel& tp) const {
  const std::int64_t rows = padded_vocab / tp.size(), first = rows * tp.rank();
  Part part{.name = name, .global = shape(vocab, hidden)};
  part.begin = first;
  part.end = std::clamp(vocab, first, first + rows);
  return {.name = name, .shape = shape(rows, hidden), .parts = {part}, .init = init, .first_use_overwrites = true};
}

Embedding::Embedding(ParamStore& params, const EmbeddingSpec& spec, const TensorParallel& tp, Param* shared)
    : tp_(tp),
      table_(shared),
      dropout_(spec.dropout),
      key_(rng_stream(spec.seed, (spec.dropout_name.empty() ? spec.name : spec.dropout_name) + ".dropout")) {
  if (shared) {
    params.share(*shared);
    return;
  }
  const VocabularyTable table{.name = spec.name + ".weight",
                              .vocab = spec.vocab,
                              .padded_vocab = spec.padded_vocab,
                              .hidden = spec.hidden,
                              .init = {.kind = Init::Kind::normal, .std = spec.init_std, .padding = spec.init_padding}};
  table_ = &params.add(table.spec(tp));
  table_->spec.on_another_stage = spec.on_another_stage;
  table_->spec.norm_counted_elsewhere = spec.norm_counted_elsewhere;
  if (spec.position_name.empty()) return;
  const std::string name = spec.position_name + ".weight";
  positions_ = &params.add({.name = name,
                            .shape = shape(spec.max_positions, spec.hidden),
                            .parts = {tp.replicated({.name = name, .global = shape(spec.max_positions, spec.hidden)})},
                            .init = {.kind = Init::Kind::normal, .std = spec.init_std},
                            .first_use_overwrites = true});
}

// Each rank looks up the tokens in its vocabulary range, and the first adds the positions: the sum over ranks is exact.
void Embedding::f(Run& run, EmbeddingSaved& /*saved*/, const Tensor& /*x*/, const Tensor& y) {
  const bool with_positions = positions_ && tp_.rank() == 0;
  const Tensor partial = tp_.partial_buffer(run, y, "embedding.y");
  run.ops(EmbeddingArgs{.tokens = run.mb.tokens,
                        .table = table_->value,
                        .y = partial,
                        .positions = with_positions ? run.mb.positions : Tensor{},
                        .position_table = with_positions ? positions_->value : Tensor{},
                        .first = vocab_start(),
                        .partial = tp_.size() > 1});
  run.ops.wait(tp_.reduce(run, partial, y));
  if (dropout_ > 0 && run.mb.training) drop(run, y, y);
}

void Embedding::drop(Run& run, const Tensor& x, const Tensor& y) const {
  run.ops(
      DropoutArgs{.x = x, .y = y, .residual = {}, .rows = tp_.local_rows(run.mb.rows), .rate = dropout_, .key = key_});
}

void Embedding::b(Run& /*run*/, EmbeddingSaved& /*saved*/, const Tensor& /*x*/, const Tensor& /*dy*/,
                  const Tensor& /*dx*/) {}

void Embedding::w(Run& run, EmbeddingSaved& /*saved*/, const Tensor& dy) {
  Tensor dtaken = dy;
  if (dropout_ > 0 && run.mb.training) {
    dtaken = run.scratch.take(dy.shape, dy.dtype, "embedding.ddropout");
    drop(run, dy, dtaken);
  }
  const Tensor all = tp_.gather(run, dtaken, run.scratch, "embedding.dy");
  // The lookup's gradient has rows of few tokens, so the table's gradient is cleared first, unless the tied head or an
  // earlier microbatch has written all of it.
  const auto clear_if_empty = [&](Param& table) {
    if (!table.accumulate_next()) run.ops(FillArgs{.out = table.grad, .value = 0});
  };
  if (table_->grad) {
    clear_if_empty(*table_);
    run.ops(EmbeddingBackArgs{
        .ids = run.mb.tokens, .dy = all, .dtable = table_->grad, .first = vocab_start(), .partial = tp_.size() > 1});
  }
  if (positions_ && positions_->grad) {
    clear_if_empty(*positions_);
    run.ops(EmbeddingBackArgs{.ids = run.mb.positions, .dy = all, .dtable = positions_->grad});
  }
}

}  // namespace tera
