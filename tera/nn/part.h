#pragma once
// Which elements of which tensor of the outside world the rows of a parameter are. Initial values, files, sums of
// replicated gradients and the gradient norm all read parts; nothing else knows how a model is cut over ranks.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tera/tensor/tensor.h"

namespace tera {

class Ops;
struct Param;

struct Part {
  std::string name;            // as in Hugging Face, e.g. model.layers.0.mlp.gate_proj.weight
  Shape global;                // of the whole tensor, [out,in] or [out]
  std::int64_t local_row = 0;  // where its rows begin in the parameter
  bool transposed = false;     // files hold [in,out] (GPT-2)

  // This rank holds [begin,end) of one dim of the whole, and all of the other.
  int split = 0;
  std::int64_t begin = 0, end = -1;  // negative: to the end of the dim

  // Tensor-parallel ranks that hold the same range, and which of them this is.
  int replicas = 1, replica = 0;

  std::int64_t stop() const { return end < 0 ? global[split] : end; }
  Shape held() const;  // the shape of what this rank holds
};

// The part's rows in a parameter's value, master copy or gradient.
Tensor part_rows(const Tensor& whole, const Part& part);

// Cuts what this rank holds out of the whole tensor's values, given in [out,in] order.
std::vector<float> cut_part(const Part& part, std::span<const float> whole);
// Writes the whole tensor's values, as far as this rank holds them, into the parameter.
void write_part(Ops& ops, const Param& param, const Part& part, std::span<const float> whole);
// Reads what this rank holds.
std::vector<float> read_part(Ops& ops, const Tensor& from, const Part& part);

// Floats to and from a dense tensor of any float dtype that parameters have.
void upload(Ops& ops, std::span<const float> values, const Tensor& to);
std::vector<float> download(Ops& ops, const Tensor& from);

}  // namespace tera
