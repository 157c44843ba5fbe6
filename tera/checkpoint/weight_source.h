#pragma once
// Interface for the weights of a full model, in any storage, read in boxes. A rank that loads reads only its own
// slices; an export reads everything, a few megabytes at a time.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tera/checkpoint/model_state.h"
#include "tera/tensor/dtype.h"
#include "tera/tensor/shape.h"

namespace tera {

class Ops;
class ParamStore;

// A range of rows and columns of a tensor in [out,in] order; a tensor of rank 1 has one column.
struct WeightBox {
  std::int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 1;
  std::int64_t rows() const { return row_end - row_begin; }
  std::int64_t columns() const { return column_end - column_begin; }
  std::int64_t elements() const { return rows() * columns(); }
};

class WeightSource {
 public:
  struct Entry {
    DType dtype = DType::f32;  // f32, bf16, f16 or f64
    Shape shape;               // [out,in] or [out], whatever the order in the files
  };
  virtual ~WeightSource() = default;
  // All tensors, by their Hugging Face names.
  virtual const std::map<std::string, Entry>& tensors() const = 0;
  // Reads the elements of the box in the stored dtype, row by row.
  virtual void read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const = 0;
  virtual std::string where() const = 0;  // for messages
};

WeightBox full_box(const Shape& shape);

// Converts elements of any float type to f32: f64 is rounded, the others are exact.
void to_floats(DType dtype, std::span<const std::byte> stored, std::span<float> out);

// The tensors that Hugging Face files of the model have, without vocabulary padding, in order of names.
std::vector<ModelTensor> weights_of(const ModelShape& model);

// UserError, which lists a few names, unless the source has every tensor of the model with its shape, and no others but
// those of additional MTP layers.
void check_tensors(const WeightSource& source, const ModelShape& model);

// Loads the values, masters and shards of this rank, of bound parameters. Tensors that the source lacks are left
// unchanged.
void load_weights(const WeightSource& source, ParamStore& params, Ops& ops);

}  // namespace tera
