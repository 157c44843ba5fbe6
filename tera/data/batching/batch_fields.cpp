#include "tera/data/batching/batch_fields.h"

namespace tera {

BatchBuffers::BatchBuffers(const BatchSizes& sizes) {
  std::size_t index = 0;
  const auto allocate = [&]<class T>(const BatchField<T>& field) {
    auto& memory = [&]() -> std::vector<T>& {
      if constexpr (std::is_same_v<T, std::int64_t>)
        return longs_[index];
      else
        return ints_[index];
    }();
    memory.resize(static_cast<std::size_t>(sizes.elements(field.per, field.split)));
    spans_.*field.host = memory;
    ++index;
  };
  for_each_batch_field(allocate);
}

BatchSpans BatchBuffers::filled(const BatchCounts& counts) const {
  BatchSpans rows = spans_;
  if (counts.documents > 0) rows.offsets = rows.offsets.first(static_cast<std::size_t>(counts.documents + 1));
  return rows;
}

}  // namespace tera
