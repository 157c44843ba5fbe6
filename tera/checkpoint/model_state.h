#pragma once
// The state dict of a rank: the tensors of a checkpoint, and the elements of them that this rank has. Names:
//
//   model.norm.weight                       a weight, in the dtype of compute, under its Hugging Face name
//   optimizer.master.model.norm.weight      its fp32 master copy, where compute is not fp32
//   optimizer.exp_avg.model.norm.weight     what the optimizer keeps of it (exp_avg, exp_avg_sq; momentum_buffer)
//   optimizer.expert_shares.model.layers.0.mlp.gate    tokens per expert in the previous step, for global_aux_loss
//   lm_head.weight.vocab_padding            trained padding rows of the vocabulary (model.pad_vocab_in_softmax)
//
// Shapes are those of the model, [out,in], also where Hugging Face's files have [in,out].

#include <span>
#include <string>
#include <vector>

#include "tera/checkpoint/tensor_slice.h"
#include "tera/config/setup.h"
#include "tera/nn/params.h"
#include "tera/optim/optimizer.h"

namespace tera {

// A weight of the full model.
struct ModelTensor {
  std::string name;
  Shape shape;              // [out,in] or [out]
  bool transposed = false;  // Hugging Face's files hold [in,out]
  bool trained = true;
  bool padding = false;       // rows of vocabulary padding; their number may change from run to run
  bool router_state = false;  // from counts of routed tokens, not gradients: f32 in any precision
  bool in_files = true;       // belongs in Hugging Face files too, and wherever only weights are used
};

// All tensors of a model, in order of names; ModelShape::freeze decides which are trained.
std::vector<ModelTensor> list_tensors(const ModelShape& model);
std::vector<ModelTensor> list_tensors(const ParamStore& full);  // full: a store of the full model

struct StateTensor {
  std::string name;  // as listed above
  Shape shape;
  DType dtype = DType::f32;
  std::size_t weight = 0;  // index of its ModelTensor
};

// Elements of a tensor that are contiguous in the memory of this rank.
struct StatePiece {
  std::size_t tensor = 0;
  TensorSlice slice;
  Tensor data;  // [elements]
};

class ModelState {
 public:
  // The state of a rank; without an optimizer only weights. params and optimizer outlive it; the store is bound.
  ModelState(std::vector<ModelTensor> model, const ParamStore& params, const Optimizer* optimizer = nullptr);

  const std::vector<ModelTensor>& weights() const { return weights_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }

  // Pieces that this rank loads; of a sharded bucket only its own shard, even of unsharded weights.
  std::vector<StatePiece> kept() const;
  // Pieces that this rank writes: over all ranks, every element of every tensor once.
  std::vector<StatePiece> written(const Replicas& replicas) const;

 private:
  struct Range {  // in the flat numbering of elements
    std::int64_t begin, end;
  };
  struct Kind {
    std::string prefix;  // prefix of tensor names
    DType dtype;
    bool trained_only;
    Tensor moment;  // moment of all shards of this rank; none for weights and masters
  };
  struct Located {  // a part of a parameter, with its location
    std::size_t weight;
    TensorSlice slice;
    std::int64_t first;  // its first element in the flat numbering
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
  std::vector<std::int64_t> numbers_;  // [kinds, weights]: index of the tensor, or negative
  const ParamStore& params_;
};

}  // namespace tera
