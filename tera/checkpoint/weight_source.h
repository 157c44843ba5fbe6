#pragma once
// The tensors of a whole model, wherever they lie: anything that can give a box of one of them. A rank that loads asks
// for what it holds and no more; an export asks for everything, a few megabytes at a time.

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

// Rows and columns of a tensor in [out,in] order; one of rank 1 has one column.
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
    Shape shape;               // [out,in] or [out], however the files order it
  };
  virtual ~WeightSource() = default;
  // By their Hugging Face names.
  virtual const std::map<std::string, Entry>& tensors() const = 0;
  // The box's elements as they are stored, row by row.
  virtual void read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const = 0;
  virtual std::string where() const = 0;  // for messages
};

WeightBox whole_box(const Shape& shape);

// Floats from elements of any float type: f64 is rounded, the others are exact.
void to_floats(DType dtype, std::span<const std::byte> stored, std::span<float> out);

// Those that every file of the model has: no padding of the vocabulary. In the order of names.
std::vector<ModelTensor> weights_of(const ModelShape& model);

// UserError unless the source has every tensor of the model with its shape, and nothing else but layers that predict
// further ahead than the model does; it lists a few names.
void check_tensors(const WeightSource& source, const ModelShape& model);

// What this rank holds, of parameters that are bound: values, masters, and its shares of either. What the source has
// not stays as it is.
void load_weights(const WeightSource& source, ParamStore& params, Ops& ops);

}  // namespace tera
