#include "tera/checkpoint/checkpoint_weights.h"

#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

bool is_weight(std::string_view name) { return !name.starts_with("optimizer.") && !name.ends_with(".vocab_padding"); }

TensorSlice slice_of(const WeightBox& box, const Shape& shape) {
  if (shape.rank == 1) return {.split = 0, .begin = box.row_begin, .end = box.row_end, .from = 0, .to = box.rows()};
  return {.split = 1,
          .begin = box.column_begin,
          .end = box.column_end,
          .from = box.row_begin * box.columns(),
          .to = box.row_end * box.columns()};
}

}  // namespace

CheckpointWeights::CheckpointWeights(const Checkpoint& checkpoint, const ModelShape& model, bool masters)
    : checkpoint_(checkpoint), reader_(checkpoint) {
  const bool as_in_files = checkpoint.manifest().version == 1;
  for (const ModelTensor& tensor : list_tensors(model)) transposed_[tensor.name] = as_in_files && tensor.transposed;
  for (const auto& [name, tensor] : checkpoint.manifest().tensors) {
    if (!is_weight(name)) continue;
    const std::string master = "optimizer.master." + name;
    const ManifestTensor* exact = masters ? checkpoint.find(master) : nullptr;
    sources_[name] = exact != nullptr ? master : name;
    const DType dtype = exact != nullptr ? exact->dtype : tensor.dtype;
    require_user(is_float(dtype), "{}: '{:.200}' holds {}, not floats", checkpoint.folder().string(), sources_[name],
                 name_of(dtype));
    if (exact != nullptr && exact->shape != tensor.shape)
      fail_user("{}: '{:.200}' is {}, and the weight {}", checkpoint.folder().string(), master, to_string(exact->shape),
                to_string(tensor.shape));
    Shape shape = tensor.shape;
    if (transposed_[name] && shape.rank == 2) std::swap(shape[0], shape[1]);
    tensors_[name] = {.dtype = dtype, .shape = shape};
  }
}

void CheckpointWeights::read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const {
  const Entry& entry = tensors_.at(name);
  reader_.read(sources_.at(name), slice_of(box, entry.shape), entry.dtype, out, transposed_.at(name));
}

}  // namespace tera
