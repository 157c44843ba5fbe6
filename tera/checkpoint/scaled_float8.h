#pragma once
// A matrix of 8-bit floats with a scale for each block of it:
//
//   [5,7] in blocks of 2x3      scales [3,3]
//   a a a b b b c               a b c
//   a a a b b b c               d e f
//   d d d e e e f               g h i
//   d d d e e e f
//   g g g h h h i               a value is that of its code times its block's scale, an f32 product
//
// Several matrices of one shape may lie in one tensor, [E,R,C] with scales [E,.,.]: blocks begin anew in each.

#include <cstdint>
#include <span>
#include <string>

#include "tera/checkpoint/safetensors.h"
#include "tera/checkpoint/weight_source.h"
#include "tera/config/hf_quantization.h"

namespace tera {

class ScaledFloat8 {
 public:
  // UserError, which names the tensor, unless the scales are floats and as many as there are blocks. The files stay
  // open as long as this is used.
  ScaledFloat8(const SafetensorsFile& file, const std::string& name, const SafetensorsFile& scale_file,
               const std::string& scale_name, const HfQuantization& blocks);

  const Shape& shape() const { return codes_.shape; }
  // Floats of any box, row by row: rows are counted through all matrices. UserError where a value is not finite:
  // whatever wrote the file never meant that.
  void read(const WeightBox& box, std::span<std::byte> out) const;

 private:
  float scale_at(std::int64_t row, std::int64_t column) const;  // of the block that has this element
  void read_row(std::int64_t row, const WeightBox& box, std::byte* out) const;

  std::string where_, name_, scale_where_, scale_name_;  // for messages
  StoredFloat8 codes_;
  StoredTensor scales_;
  HfQuantization blocks_;
  std::int64_t rows_ = 0, columns_ = 0;              // of one matrix
  std::int64_t block_rows_ = 0, block_columns_ = 0;  // how many blocks one has below and beside each other
};

}  // namespace tera
