#pragma once
// Multi-token prediction (MTP, DeepSeek-V3). Depth k = 1, 2 ... reads at row i the token i+k and the hidden state
// h_{k-1} of row i, and predicts the token i+k+1. Every depth has a chain of blocks after the head:
//
//   residual stream x -> Head -> h_0 -> MtpInput -> attention -> feed-forward -> Head -> h_1 -> MtpInput -> ...
//                         loss             e_1                                  loss of depth 1
//
//   e_k[i] = embedding of token i+k     MtpInput: project [ norm(e_k) | norm(h_{k-1}) ]     h_k: normed by the head
//
// The embedding table and the head's weights are those of the model; so their gradients have terms of every depth.

#include "tera/nn/embeddings/embedding.h"
#include "tera/nn/linear.h"
#include "tera/nn/norm.h"
#include "tera/nn/phased.h"

namespace tera {

struct MtpInputSpec {
  EmbeddingSpec embedding;
  NormSpec embedding_norm, hidden_norm;
  LinearSpec project;  // [H,2H]: columns of the embedding come first
};

struct MtpInputSaved final : Saved {
  EmbeddingSaved lookup;
  Tensor embedded;  // [T,H]
  NormStats embedding_stats, hidden_stats;
  Tensor joined;     // [T,2H]
  Tensor dembedded;  // [T,H]
};

// y = project [ norm(embedding) | norm(x) ]
class MtpInput final : public BlockOf<MtpInputSaved> {
 public:
  // table: the embedding table of another block, or null
  MtpInput(ParamStore& params, const MtpInputSpec& spec, const TensorParallel& tp = {}, Param* table = nullptr);
  Param& table() { return embedding_.table(); }
  const char* kind() const override { return "mtp_input"; }

 private:
  void f(Run& run, MtpInputSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, MtpInputSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, MtpInputSaved& saved, const Tensor& dy) override;

  Embedding embedding_;
  Norm embedding_norm_, hidden_norm_;
  Linear project_;
};

struct MtpSaved final : Saved {
  std::unique_ptr<Saved> inner;
};

// A block of one depth: it runs on the tokens and targets shifted by the depth in place of the microbatch's own.
// Outside training it does nothing: nobody reads what it would make.
class Mtp final : public BlockOf<MtpSaved>, public Phased {
 public:
  Mtp(std::size_t depth, std::unique_ptr<Block> inner)  // depth: from 1
      : depth_(depth), inner_(std::move(inner)), phased_(phased(*inner_)) {}
  std::unique_ptr<Saved> make_saved() const override;
  const char* kind() const override { return "mtp"; }
  bool makes_gradients_in_f() const override { return inner_->makes_gradients_in_f(); }

  int phases() const override { return phased_ ? phased_->phases() : 1; }
  void forward_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& y) override;
  void backward_input_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                            const Tensor& dx) override;

 private:
  MicroBatch shifted(const MicroBatch& mb) const;
  template <class Call>
  void with_shifted(Run& run, const Call& call) const;
  void f(Run& run, MtpSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, MtpSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, MtpSaved& saved, const Tensor& dy) override;

  std::size_t depth_;
  std::unique_ptr<Block> inner_;
  Phased* phased_;  // inner_, or null where it has a single phase
};

}  // namespace tera
