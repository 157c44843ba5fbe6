#include "tera/nn/embedding.h"

namespace tera {

ParamSpec vocabulary_table(const std::string& name, std::int64_t vocab, std::int64_t padded_vocab, std::int64_t hidden,
                           const Init& init) {
  return {.name = name,
          .shape = shape(padded_vocab, hidden),
          .parts = {{.name = name, .global = shape(vocab, hidden)}},
          .init = init};
}

Embedding::Embedding(ParamStore& params, const EmbeddingSpec& spec)
    : dropout_(spec.dropout), key_(rng_stream(spec.seed, spec.name + ".dropout")) {
  const Init init{.kind = Init::Kind::normal, .std = spec.init_std, .padding = spec.init_padding};
  table_ = &params.add(vocabulary_table(spec.name + ".weight", spec.vocab, spec.padded_vocab, spec.hidden, init));
  if (spec.position_name.empty()) return;
  const std::string name = spec.position_name + ".weight";
  positions_ = &params.add({.name = name,
                            .shape = shape(spec.max_positions, spec.hidden),
                            .parts = {{.name = name, .global = shape(spec.max_positions, spec.hidden)}},
                            .init = {.kind = Init::Kind::normal, .std = spec.init_std}});
}

void Embedding::f(Run& run, EmbeddingSaved& /*saved*/, const Tensor& /*x*/, const Tensor& y) {
  run.ops.embedding({.tokens = run.mb.tokens,
                     .table = table_->value,
                     .y = y,
                     .positions = positions_ ? run.mb.positions : Tensor{},
                     .position_table = positions_ ? positions_->value : Tensor{}});
  if (dropout_ > 0 && run.mb.training)
    run.ops.dropout({.x = y, .y = y, .residual = {}, .rows = run.mb.rows, .rate = dropout_, .key = key_});
}

void Embedding::b(Run& /*run*/, EmbeddingSaved& /*saved*/, const Tensor& /*x*/, const Tensor& /*dy*/,
                  const Tensor& /*dx*/) {}

void Embedding::w(Run& run, EmbeddingSaved& /*saved*/, const Tensor& dy) {
  Tensor dtaken = dy;
  if (dropout_ > 0 && run.mb.training) {
    dtaken = run.scratch.take(dy.shape, dy.dtype, "embedding.ddropout");
    run.ops.dropout({.x = dy, .y = dtaken, .residual = {}, .rows = run.mb.rows, .rate = dropout_, .key = key_});
  }
  if (table_->grad) run.ops.embedding_back({.ids = run.mb.tokens, .dy = dtaken, .dtable = table_->grad});
  if (positions_ && positions_->grad)
    run.ops.embedding_back({.ids = run.mb.positions, .dy = dtaken, .dtable = positions_->grad});
}

}  // namespace tera
