#pragma once
// Output head: final norm, logits and fused chunked cross entropy, which writes each token's loss into the microbatch.
// The last block, without a y; but with multi-token prediction the normed x is its y, and each depth has another head.
//
// Logits are made in chunks of rows, and while a chunk is there its loss, its gradient and the two GEMMs of that
// gradient are made too; so [T,V] never exists, and F does what elsewhere is W. B only passes through the norm.

#include "tera/nn/block.h"
#include "tera/nn/norm.h"
#include "tera/nn/params.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

struct HeadSpec {
  NormSpec norm;
  std::string name;  // files hold name.weight; when tied, the embedding's
  std::int64_t vocab = 0, padded_vocab = 0, hidden = 0;
  bool pad_vocab_in_softmax = false;
  float init_std = 0;
  bool tied_elsewhere = false;  // to an embedding table on another pipeline stage: this one has its own copy
};

struct HeadSaved final : Saved {
  NormStats stats;
  Tensor dnormed;  // [T,H]: local rows; B adds dy
};

class Head final : public BlockOf<HeadSaved> {
 public:
  // tied: the embedding table or the weight of another head, or null
  Head(ParamStore& params, const HeadSpec& spec, Param* tied, const TensorParallel& tp = {});

  // Rows of logits that are made at a time.
  static std::int64_t chunk_rows(std::int64_t tokens, std::int64_t padded_vocab, std::int64_t chunk_elements);
  Param& weight() { return *weight_; }  // for other heads
  const char* kind() const override { return "head"; }
  bool makes_gradients_in_f() const override { return true; }

 private:
  void chunk(Run& run, const Tensor& normed, const Tensor& dnormed, std::int64_t begin, std::int64_t end);
  void losses(Run& run, const Tensor& logits, std::int64_t begin, std::int64_t end);
  void write_logits(Run& run, const Tensor& normed);
  void f(Run& run, HeadSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, HeadSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, HeadSaved& saved, const Tensor& dy) override;

  TensorParallel tp_;
  Norm norm_;
  Param* weight_;               // [padded V,H], this rank's vocabulary rows
  std::int64_t softmax_width_;  // columns of the softmax
};

}  // namespace tera
