#pragma once
// An FP8 matrix with block-wise scales, dequantized to f32 when it is read:
//
//   [5,7] in blocks of 2x3      scales [3,3]
//   a a a b b b c               a b c
//   a a a b b b c               d e f
//   d d d e e e f               g h i
//   d d d e e e f
//   g g g h h h i               value = FP8 code times the scale of its block, in f32
//
// Several matrices of one shape may be stored in one tensor, [E,R,C] with scales [E,.,.]; blocks do not span matrices.

#include <cstdint>
#include <span>
#include <string>

#include "tera/checkpoint/safetensors.h"
#include "tera/checkpoint/weight_source.h"
#include "tera/hf/config/hf_quantization.h"

namespace tera {

class ScaledFloat8 {
 public:
  // UserError, which names the tensor, unless the scales are floats, one per block. The files must stay open as long as
  // this is used.
  ScaledFloat8(const SafetensorsFile& file, const std::string& name, const SafetensorsFile& scale_file,
               const std::string& scale_name, const HfQuantization& blocks);

  const Shape& shape() const { return codes_.shape; }
  // Dequantizes a box, row by row; rows are numbered through all matrices. UserError if a value is not finite, since no
  // quantizer writes that.
  void read(const WeightBox& box, std::span<std::byte> out) const;

 private:
  float scale_at(std::int64_t row, std::int64_t column) const;  // scale of the block of this element
  void read_row(std::int64_t row, const WeightBox& box, std::byte* out) const;

  std::string where_, name_, scale_where_, scale_name_;  // for messages
  StoredFloat8 codes_;
  StoredTensor scales_;
  HfQuantization blocks_;
  std::int64_t rows_ = 0, columns_ = 0;              // size of one matrix
  std::int64_t block_rows_ = 0, block_columns_ = 0;  // number of blocks of one matrix, vertically and horizontally
};

}  // namespace tera
