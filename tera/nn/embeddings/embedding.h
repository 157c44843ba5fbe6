#pragma once
// The embedding table, the first block: y = table[tokens] (+ positions[position]), with dropout. It has no x. The
// layers of multi-token prediction have an embedding too, of the same table.

#include "tera/base/rng.h"
#include "tera/nn/block.h"
#include "tera/nn/params.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

struct EmbeddingSpec {
  std::string name;        // files hold name.weight
  std::int64_t vocab = 0;  // rows that are tokens; the table has padded_vocab rows
  std::int64_t padded_vocab = 0, hidden = 0;
  std::string position_name;  // learned positions; empty: none
  std::int64_t max_positions = 0;
  float init_std = 0, dropout = 0;
  bool init_padding = false;
  bool on_another_stage = false;        // another pipeline stage has the table too
  bool norm_counted_elsewhere = false;  // the gradient norm counts the table on that stage
  std::string dropout_name;             // name of its random draws; empty: name
  std::uint64_t seed = 0;
};

struct EmbeddingSaved final : Saved {};

class Embedding final : public BlockOf<EmbeddingSaved> {
 public:
  // shared: the table of another block, or null
  Embedding(ParamStore& params, const EmbeddingSpec& spec, const TensorParallel& tp = {}, Param* shared = nullptr);
  Param& table() { return *table_; }
  const char* kind() const override { return "embedding"; }

 private:
  std::int64_t vocab_start() const { return table_->spec.parts[0].begin; }
  void drop(Run& run, const Tensor& x, const Tensor& y) const;
  void f(Run& run, EmbeddingSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, EmbeddingSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, EmbeddingSaved& saved, const Tensor& dy) override;

  TensorParallel tp_;
  Param* table_;                // [padded V,H], this rank's vocabulary rows
  Param* positions_ = nullptr;  // [P,H]
  float dropout_;
  RngKey key_;
};

// A vocabulary-parallel parameter: each tensor-parallel rank has a range of the vocabulary rows. The output head has
// one too.
struct VocabularyTable {
  std::string name;
  std::int64_t vocab = 0, padded_vocab = 0, hidden = 0;
  Init init;
  ParamSpec spec(const TensorParallel& tp) const;
};

}  // namespace tera
