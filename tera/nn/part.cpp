#include "tera/nn/part.h"

#include "tera/base/error.h"
#include "tera/nn/params.h"
#include "tera/ops/ops.h"

namespace tera {

Shape Part::local_shape() const {
  Shape shape = global;
  shape[split] = stop() - begin;
  return shape;
}

Tensor part_rows(const Tensor& param, const Part& part) {
  return param.rows(part.local_row, part.local_row + part.local_shape()[0]);
}

std::vector<float> cut_part(const Part& part, std::span<const float> full) {
  if (static_cast<std::int64_t>(full.size()) != count(part.global))
    fail("'{}' takes {} values, not {}", part.name, to_string(part.global), full.size());
  const Shape local = part.local_shape();
  const std::int64_t columns = part.global.rank == 2 ? part.global[1] : 1;
  const std::int64_t width = local.rank == 2 ? local[1] : 1;
  const std::int64_t first_row = part.split == 0 ? part.begin : 0, first_column = part.split == 1 ? part.begin : 0;
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(count(local)));
  for (std::int64_t row = first_row; row < first_row + local[0]; ++row) {
    const auto* from = full.data() + row * columns + first_column;
    values.insert(values.end(), from, from + width);
  }
  return values;
}

void write_part(Ops& ops, const Param& param, const Part& part, std::span<const float> full) {
  const std::vector<float> values = cut_part(part, full);
  upload(ops, values, part_rows(param.value, part));
  if (param.master && param.master.data != param.value.data) upload(ops, values, part_rows(param.master, part));
}

std::vector<float> read_part(Ops& ops, const Tensor& from, const Part& part) {
  return download(ops, part_rows(from, part));
}

void upload(Ops& ops, std::span<const float> values, const Tensor& to) {
  std::vector<std::byte> converted(to.bytes());
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (to.dtype) {
      case DType::f32: reinterpret_cast<float*>(converted.data())[i] = values[i]; break;
      case DType::bf16: reinterpret_cast<BFloat16*>(converted.data())[i] = to_bf16(values[i]); break;
      case DType::f16: reinterpret_cast<Float16*>(converted.data())[i] = to_f16(values[i]); break;
      default: fail("parameters are not stored as {}", name_of(to.dtype));
    }
  }
  ops.from_host(converted, to);
}

std::vector<float> download(Ops& ops, const Tensor& from) {
  std::vector<std::byte> raw(from.bytes());
  ops.to_host(from, raw);
  std::vector<float> values(static_cast<std::size_t>(count(from.shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (from.dtype) {
      case DType::f32: values[i] = reinterpret_cast<const float*>(raw.data())[i]; break;
      case DType::bf16: values[i] = to_float(reinterpret_cast<const BFloat16*>(raw.data())[i]); break;
      case DType::f16: values[i] = to_float(reinterpret_cast<const Float16*>(raw.data())[i]); break;
      default: fail("parameters are not stored as {}", name_of(from.dtype));
    }
  }
  return values;
}

}  // namespace tera
