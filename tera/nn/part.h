#pragma once
// How a parameter on this rank maps to global tensors: which rows or columns of which Hugging Face tensor its rows are.
// Initial values, files, sums of replicated gradients and the gradient norm all read parts; nothing else knows how a
// model is sharded over ranks.

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
  Shape global;                // shape of the global tensor, [out,in] or [out]
  std::int64_t local_row = 0;  // where its rows begin in the parameter
  bool transposed = false;     // files hold [in,out] (GPT-2)

  // This rank holds [begin,end) of one dim of the global tensor, and all of the other.
  int split = 0;
  std::int64_t begin = 0, end = -1;  // negative: to the end of the dim

  // How many tensor-parallel ranks hold the same range, and this rank's index among them.
  int replicas = 1, replica = 0;

  std::int64_t stop() const { return end < 0 ? global[split] : end; }
  Shape local_shape() const;  // the shape of what this rank holds
};

// The part's rows in a parameter's value, master copy or gradient.
Tensor part_rows(const Tensor& param, const Part& part);

// The local values among the global tensor's, which are in [out,in] order.
std::vector<float> cut_part(const Part& part, std::span<const float> full);
// Writes the global tensor's values, as far as this rank holds them, into the parameter and its master.
void write_part(Ops& ops, const Param& param, const Part& part, std::span<const float> full);
// Reads the local values.
std::vector<float> read_part(Ops& ops, const Tensor& from, const Part& part);

// Floats to and from a dense tensor of any float dtype that parameters have.
void upload(Ops& ops, std::span<const float> values, const Tensor& to);
std::vector<float> download(Ops& ops, const Tensor& from);

}  // namespace tera
