#include "tera/checkpoint/scaled_float8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tera/base/error.h"
#include "tera/checkpoint/safetensors_source.h"

namespace tera {
namespace {

using Table = std::array<float, 256>;

constexpr Table table_of(Float8Kind kind) {
  Table table{};
  for (std::size_t code = 0; code < table.size(); ++code) table[code] = to_float(kind, static_cast<std::uint8_t>(code));
  return table;
}

const Table& values_of(Float8Kind kind) {
  static constexpr Table e4m3 = table_of(Float8Kind::e4m3), e5m2 = table_of(Float8Kind::e5m2);
  return kind == Float8Kind::e4m3 ? e4m3 : e5m2;
}

std::int64_t ceil_div(std::int64_t total, std::int64_t size) { return (total + size - 1) / size; }

}  // namespace

ScaledFloat8::ScaledFloat8(const SafetensorsFile& file, const std::string& name, const SafetensorsFile& scale_file,
                           const std::string& scale_name, const HfQuantization& blocks)
    : where_(file.path().string()),
      name_(name),
      scale_where_(scale_file.path().string()),
      scale_name_(scale_name),
      codes_(*file.find_float8(name)),
      scales_(scale_file.get(scale_name)),
      blocks_(blocks) {
  const int rank = codes_.shape.rank;
  require_user(rank == 2 || rank == 3, "{}: '{:.200}' is an FP8 tensor of shape {}; only matrices have blocks", where_,
               name, to_string(codes_.shape));
  rows_ = codes_.shape[rank - 2];
  columns_ = codes_.shape[rank - 1];
  block_rows_ = ceil_div(rows_, blocks.block_rows);
  block_columns_ = ceil_div(columns_, blocks.block_columns);
  Shape wanted = codes_.shape;
  wanted[rank - 2] = block_rows_;
  wanted[rank - 1] = block_columns_;
  require_user(scales_.shape == wanted, "{}: '{:.200}' is {}, not {}: '{:.200}' is {}, in blocks of {}x{}",
               scale_where_, scale_name, to_string(scales_.shape), to_string(wanted), name, to_string(codes_.shape),
               blocks.block_rows, blocks.block_columns);
  require_user(is_float(scales_.dtype), "{}: '{:.200}' holds {}, not floats", scale_where_, scale_name,
               name_of(scales_.dtype));
}

float ScaledFloat8::scale_at(std::int64_t row, std::int64_t column) const {
  const std::int64_t block_row = row / rows_ * block_rows_ + row % rows_ / blocks_.block_rows;
  const std::size_t size = size_of(scales_.dtype);
  const auto at = static_cast<std::size_t>(block_row * block_columns_ + column / blocks_.block_columns) * size;
  float scale = 0;
  to_floats(scales_.dtype, scales_.bytes.subspan(at, size), {&scale, 1});
  require_user(std::isfinite(scale), "{}: '{:.200}' has a scale that is not finite", scale_where_, scale_name_);
  return scale;
}

// Dequantizes a row, one block at a time.
void ScaledFloat8::read_row(std::int64_t row, const WeightBox& box, std::byte* out) const {
  const Table& values = values_of(codes_.kind);
  const std::byte* codes = codes_.bytes.data() + row * columns_;
  for (std::int64_t begin = box.column_begin; begin < box.column_end;) {
    const std::int64_t block_end = (begin / blocks_.block_columns + 1) * blocks_.block_columns;
    const std::int64_t end = std::min(block_end, box.column_end);
    const float scale = scale_at(row, begin);
    bool finite = true;
    for (std::int64_t column = begin; column < end; ++column, out += sizeof(float)) {
      const float value = values[std::to_integer<std::size_t>(codes[column])] * scale;
      std::memcpy(out, &value, sizeof(value));
      finite = finite && std::isfinite(value);
    }
    require_user(finite, "{}: '{:.200}' has a value that is not finite in row {}, columns {} to {}", where_, name_, row,
                 begin, end);
    begin = end;
  }
}

void ScaledFloat8::read(const WeightBox& box, std::span<std::byte> out) const {
  const std::size_t run = static_cast<std::size_t>(box.columns()) * sizeof(float);
  require(out.size() == static_cast<std::size_t>(box.rows()) * run, "a box of '{}' has another size", name_);
  std::byte* to = out.data();
  for (std::int64_t row = box.row_begin; row < box.row_end; ++row, to += run) read_row(row, box, to);
  forget_pages(codes_.bytes.subspan(static_cast<std::size_t>(box.row_begin * columns_),
                                    static_cast<std::size_t>(box.rows() * columns_)));
}

}  // namespace tera
