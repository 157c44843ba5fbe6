#include "tera/checkpoint/weight_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tera/base/error.h"
#include "tera/config/family.h"
#include "tera/models/family_names.h"
#include "tera/nn/params.h"

namespace tera {
namespace {

constexpr std::int64_t elements_per_read = std::int64_t{4} << 20;

template <class T>
void convert(std::span<const std::byte> stored, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T element;
    std::memcpy(&element, stored.data() + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, double>)
      out[i] = static_cast<float>(element);
    else
      out[i] = to_float(element);
  }
}

// Lists a few names and the number of the others: "'a', 'b' and 7 more".
std::string list_some(const std::vector<std::string>& names) {
  constexpr std::size_t shown = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(shown, names.size()); ++i)
    out += fmt::format("{}'{:.200}'", i > 0 ? ", " : "", names[i]);
  if (names.size() > shown) out += fmt::format(" and {} more", names.size() - shown);
  return out;
}

// Whether the tensor belongs to an MTP layer that the model does not have.
bool is_left_out(const WeightSource& source, const ModelShape& model, const std::string& name) {
  const FamilyNames names = family_of(model).names();
  const std::int64_t layer = layer_of(names, name);
  return layer >= model.all_layers() && source.tensors().contains(mtp_mark(names, layer));
}

// Loads one part in slabs of rows into the value, master and shards that this rank has of it.
class PartLoader {
 public:
  PartLoader(const ParamStore& params, const Param& param, const Part& part, Ops& ops)
      : params_(params),
        param_(param),
        part_(part),
        ops_(ops),
        width_(part.global.rank == 2 ? part.local_shape()[1] : 1) {}

  void load(const WeightSource& source, DType stored) {
    const std::int64_t rows = part_.local_shape()[0], step = std::max<std::int64_t>(elements_per_read / width_, 1);
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const std::int64_t end = std::min(begin + step, rows);
      const auto elements = static_cast<std::size_t>((end - begin) * width_);
      raw_.resize(elements * size_of(stored));
      values_.resize(elements);
      source.read(part_.name, box(begin, end), raw_);
      to_floats(stored, raw_, values_);
      upload_rows(begin, end);
    }
  }

 private:
  WeightBox box(std::int64_t begin, std::int64_t end) const {
    const bool by_rows = part_.split == 0;
    WeightBox box{.row_begin = begin + (by_rows ? part_.begin : 0), .row_end = end + (by_rows ? part_.begin : 0)};
    if (part_.global.rank == 2) box.column_end = part_.global[1];
    if (!by_rows) {
      box.column_begin = part_.begin;
      box.column_end = part_.stop();
    }
    return box;
  }

  void upload_rows(std::int64_t begin, std::int64_t end) {
    const std::int64_t first = part_.local_row + begin, last = part_.local_row + end;
    if (param_.value) upload(ops_, values_, param_.value.rows(first, last));
    if (param_.master && param_.master.data != param_.value.data)
      upload(ops_, values_, param_.master.rows(first, last));
    if (param_.bucket < 0) return;
    const Bucket& bucket = params_.buckets()[static_cast<std::size_t>(param_.bucket)];
    if (bucket.shards.count > 1) place_in_shard(bucket, param_.offset + first * width_);
  }

  // at: index of the first value in the flat numbering.
  void place_in_shard(const Bucket& bucket, std::int64_t at) {
    const std::int64_t shard_begin = bucket.begin + bucket.local_begin(), shard_end = bucket.begin + bucket.local_end();
    const std::int64_t begin = std::max(at, shard_begin), end = std::min(at + std::ssize(values_), shard_end);
    if (begin >= end) return;
    const auto local = std::span<const float>(values_).subspan(static_cast<std::size_t>(begin - at),
                                                               static_cast<std::size_t>(end - begin));
    if (bucket.local_weight && !param_.value)
      upload(ops_, local, bucket.local_weight.rows(begin - shard_begin, end - shard_begin));
    if (bucket.local_master && bucket.local_master.data != bucket.local_weight.data)
      upload(ops_, local, bucket.local_master.rows(begin - shard_begin, end - shard_begin));
  }

  const ParamStore& params_;
  const Param& param_;
  const Part& part_;
  Ops& ops_;
  std::int64_t width_;  // elements of a row of this rank
  std::vector<std::byte> raw_;
  std::vector<float> values_;
};

}  // namespace

WeightBox full_box(const Shape& shape) {
  return {.row_begin = 0, .row_end = shape[0], .column_begin = 0, .column_end = shape.rank == 2 ? shape[1] : 1};
}

void to_floats(DType dtype, std::span<const std::byte> stored, std::span<float> out) {
  switch (dtype) {
    case DType::f64: return convert<double>(stored, out);
    case DType::f32: return convert<float>(stored, out);
    case DType::bf16: return convert<BFloat16>(stored, out);
    case DType::f16: return convert<Float16>(stored, out);
    default: fail("weights are not stored as {}", name_of(dtype));
  }
}

std::vector<ModelTensor> weights_of(const ModelShape& model) {
  std::vector<ModelTensor> tensors = list_tensors(model);
  std::erase_if(tensors, [](const ModelTensor& tensor) { return !tensor.in_files; });
  return tensors;
}

void check_tensors(const WeightSource& source, const ModelShape& model) {
  std::vector<std::string> missing, wrong, extra;
  std::map<std::string, Shape> wanted;
  for (const ModelTensor& tensor : weights_of(model)) wanted.emplace(tensor.name, tensor.shape);
  for (const auto& [name, shape] : wanted) {
    const auto found = source.tensors().find(name);
    if (found == source.tensors().end())
      missing.push_back(name);
    else if (found->second.shape != shape)
      wrong.push_back(fmt::format("{} {}, not {}", name, to_string(found->second.shape), to_string(shape)));
  }
  for (const auto& entry : source.tensors())
    if (!wanted.contains(entry.first) && !is_left_out(source, model, entry.first)) extra.push_back(entry.first);
  if (missing.empty() && wrong.empty() && extra.empty()) return;
  std::string problems;
  const auto add = [&](std::string_view what, const std::vector<std::string>& names) {
    if (!names.empty()) problems += fmt::format("{}{} {}", problems.empty() ? "" : "; ", what, list_some(names));
  };
  add("it lacks", missing);
  add("of another shape:", wrong);
  add("not of this model:", extra);
  fail_user("{}: not the tensors of this model ({} layers, hidden {}): {}", source.where(), model.num_layers,
            model.hidden, problems);
}

void load_weights(const WeightSource& source, ParamStore& params, Ops& ops) {
  for (const Param* param : params.by_name()) {
    if (param->spec.counts == ParamSpec::Counts::shares) continue;  // Hugging Face files have none
    for (const Part& part : param->spec.parts)
      if (count(part.local_shape()) > 0 && source.tensors().contains(part.name))
        PartLoader(params, *param, part, ops).load(source, source.tensors().at(part.name).dtype);
  }
}

}  // namespace tera
