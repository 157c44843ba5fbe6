#pragma once
// The first block: y = table[tokens] (+ positions[position]), with dropout. It has no x. Layers that predict further
// ahead have one too, of the same table.

#include "tera/nn/block.h"
#include "tera/nn/params.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

struct EmbeddingSpec {
  std::string name;        // files hold name.weight
  std::int64_t vocab = 0;  // rows that mean something; padded_vocab rows are held
  std::int64_t padded_vocab = 0, hidden = 0;
  std::string position_name;  // learned positions; empty: none
  std::int64_t max_positions = 0;
  float init_std = 0, dropout = 0;
  bool init_padding = false;
  bool on_another_stage = false;   // another rank has the table too
  bool counted_elsewhere = false;  // and it is that rank's to count it
  std::string dropout_name;        // of its random draws; empty: name
  std::uint64_t seed = 0;
};

struct EmbeddingSaved final : Saved {};

class Embedding final : public BlockOf<EmbeddingSaved> {
 public:
  // shared: another block's table, or null
  Embedding(ParamStore& params, const EmbeddingSpec& spec, const TensorParallel& tp = {}, Param* shared = nullptr);
  Param& table() { return *table_; }
  const char* kind() const override { return "embedding"; }

 private:
  std::int64_t first_word() const { return table_->spec.parts[0].begin; }
  void drop(Run& run, const Tensor& x, const Tensor& y) const;
  void f(Run& run, EmbeddingSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, EmbeddingSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, EmbeddingSaved& saved, const Tensor& dy) override;

  TensorParallel tp_;
  Param* table_;                // [padded V,H], this rank's words
  Param* positions_ = nullptr;  // [P,H]
  float dropout_;
  RngKey key_;
};

// The parameter of a table over the vocabulary, of which each rank has some of the words; the output head has one too.
struct VocabularyTable {
  std::string name;
  std::int64_t vocab = 0, padded_vocab = 0, hidden = 0;
  Init init;
  ParamSpec spec(const TensorParallel& tp) const;
};

}  // namespace tera
