#pragma once
// The whole tensors of a model from what its ranks hold of them. The first rank of the world gets them one at a time;
// the others send it their pieces, a few megabytes at a time, so that no rank needs room for more than one tensor.
//
//   rank 0   [ q_proj rows 0-63 ............ ]  own piece
//   rank 1              sends [ rows 64-127 ]   -> take("...q_proj.weight", [128,H])
//
// Ranks that hold the same elements (replicas, a tied table on two stages) send them once; where data-parallel ranks
// share the masters, each sends its share.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tera/base/function_ref.h"
#include "tera/comm/comm.h"
#include "tera/config/setup.h"
#include "tera/nn/params.h"
#include "tera/tensor/device.h"

namespace tera {

// A tensor as the outside world knows it.
struct ModelTensor {
  std::string name;
  Shape shape;              // [out,in] or [out]
  bool transposed = false;  // files hold [in,out]
};

// Of a store that holds whole tensors; in the order in which files have them.
std::vector<ModelTensor> list_tensors(const ParamStore& whole);
std::vector<ModelTensor> list_tensors(const ModelShape& model);

class GatherWeights {
 public:
  // A store that holds the whole model.
  GatherWeights(const ParamStore& params, Ops& ops);

  // One of the ranks of a world, which has been joined with ops; all make one.
  struct Ranks {
    Comm& world;
    Device& device;      // gives a few megabytes for what is on its way, and keeps them
    bool first_replica;  // of ranks that hold the same parameters
    const ModelShape& model;
  };
  GatherWeights(const ParamStore& params, Ops& ops, const Ranks& ranks);

  bool first() const { return !world_ || world_->rank() == 0; }
  const std::vector<ModelTensor>& tensors() const { return tensors_; }

  // All ranks call it; the first gets every tensor in the order of tensors(), in [out,in] order and fp32: the master
  // weights where there are any.
  using Take = FunctionRef<void(const ModelTensor& tensor, std::span<const float> values)>;
  void each(Take take);

 private:
  // Elements [from,to) of a range [begin,end) of one dim of a tensor, counted row by row in that range.
  struct Piece {
    std::int64_t tensor, split, begin, end, from, to;
  };
  struct OwnPiece {
    Piece where;
    Tensor source;  // [to-from]
  };

  void find_pieces(const ParamStore& params);
  void add_piece(const ParamStore& params, const Param& param, const Part& part, std::int64_t tensor);
  void tell_pieces();
  std::int64_t place(const Piece& piece, std::int64_t from, std::span<const float> values,
                     std::span<float> whole) const;
  std::int64_t receive(int rank, const Piece& piece, std::span<float> whole);
  void send_to_first(const OwnPiece& own);

  Ops& ops_;
  Comm* world_ = nullptr;  // none: everything is here
  bool first_replica_ = true;
  std::vector<ModelTensor> tensors_;
  std::vector<OwnPiece> own_;               // in the order of tensors, as is the next
  std::vector<std::vector<Piece>> others_;  // by rank; on the first rank only
  std::span<std::byte> staging_;            // on the device
};

}  // namespace tera
