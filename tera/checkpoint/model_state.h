#pragma once
// The tensors of a checkpoint, and which elements of them this rank has. Names:
//
//   model.norm.weight                       a weight, in the dtype of compute, under its Hugging Face name
//   optimizer.master.model.norm.weight      its fp32 master copy, where compute is not fp32
//   optimizer.exp_avg.model.norm.weight     what the optimizer keeps of it (exp_avg, exp_avg_sq; momentum_buffer)
//   optimizer.expert_shares.model.layers.0.mlp.gate    how the step before chose experts, for global_aux_loss
//   lm_head.weight.vocab_padding            trained rows behind the vocabulary (model.pad_vocab_in_softmax)
//
// Shapes are those of the model, [out,in], whatever Hugging Face's files have.

#include <span>
#include <string>
#include <vector>

#include "tera/checkpoint/tensor_slice.h"
#include "tera/config/setup.h"
#include "tera/nn/params.h"
#include "tera/optim/optimizer.h"

namespace tera {

// A weight of the whole model.
struct ModelTensor {
  std::string name;
  Shape shape;              // [out,in] or [out]
  bool transposed = false;  // Hugging Face's files hold [in,out]
  bool trained = true;
  bool padding = false;  // rows behind the vocabulary; how many there are may change from run to run
  bool counted = false;  // not from gradients but from what steps have counted: f32 whatever compute is
  bool in_files = true;  // of Hugging Face, and of all that takes the weights alone
};

// In the order of names. `freeze` and all else that shapes it are the model's.
std::vector<ModelTensor> list_tensors(const ModelShape& model);
std::vector<ModelTensor> list_tensors(const ParamStore& whole);  // of a store that holds the whole model

struct StateTensor {
  std::string name;  // as above
  Shape shape;
  DType dtype = DType::f32;
  std::size_t weight = 0;  // which ModelTensor it belongs to
};

// Elements of a tensor that this rank has together in memory.
struct StatePiece {
  std::size_t tensor = 0;
  TensorSlice slice;
  Tensor data;  // [elements]
};

class ModelState {
 public:
  // What a rank has of a model; without an optimizer the weights alone. All three outlive it; the store is bound.
  ModelState(std::vector<ModelTensor> model, const ParamStore& params, const Optimizer* optimizer = nullptr);

  const std::vector<ModelTensor>& weights() const { return weights_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }

  // All that this rank keeps; where data-parallel ranks have shares, only its own of what is kept whole as well.
  std::vector<StatePiece> kept() const;
  // What it writes: over all ranks every element of every tensor once.
  std::vector<StatePiece> written(const Replicas& replicas) const;

 private:
  struct Range {  // of the flat numbering
    std::int64_t begin, end;
  };
  struct Kind {
    std::string prefix;  // of names
    DType dtype;
    bool trained_only;
    Tensor moment;  // of all shares; none for weights and masters
  };
  struct Located {  // a part of a parameter
    std::size_t weight;
    TensorSlice slice;
    std::int64_t first;  // where it begins in the flat numbering
    TensorSlice cut(Range range) const;
  };
  static Range cut(Range range, const Replica& replica);
  static Range intersect(Range a, Range b);
  void list_kinds(const Optimizer* optimizer);
  std::vector<StatePiece> find(const Replicas* writers) const;
  Range trained(bool expert) const;
  void add_part(std::vector<StatePiece>& pieces, const Param& param, const Part& part, const Replica* writer) const;
  void add_frozen(std::vector<StatePiece>& pieces, const Param& param, const Located& located, Range range) const;
  void add_trained(std::vector<StatePiece>& pieces, const Param& param, const Located& located, Range range) const;

  std::vector<ModelTensor> weights_;
  std::vector<StateTensor> tensors_;
  std::vector<Kind> kinds_;            // weights first
  std::vector<std::int64_t> numbers_;  // [kinds, weights]: the tensor, or negative
  const ParamStore& params_;
};

}  // namespace tera
