#pragma once
// The inputs of a microbatch, each declared once: its name, its memory on the host and on the device, how many elements
// it has, and whether context parallelism splits it over ranks. What prefetches, splits, allocates and uploads inputs
// goes by this list, so a new input is a line here, and the code that fills and reads it.

#include <array>
#include <tuple>
#include <type_traits>

#include "tera/data/batching/batch_loader.h"
#include "tera/nn/run.h"

namespace tera {

// What an input has elements for, in a microbatch of T rows.
enum class PerField : std::uint8_t {
  row,       // [T]
  mtp_row,   // [depths,T], with multi-token prediction
  document,  // [documents+1], with packed documents; the capacity is T+1
};

template <class T>
struct BatchField {
  std::string_view name;
  std::span<T> BatchSpans::*host;
  Tensor MicroBatch::*device;
  PerField per;
  bool split;  // a context-parallel rank has its own rows of it; otherwise every rank has all

  static constexpr DType dtype = std::is_same_v<T, std::int64_t> ? DType::i64 : DType::i32;
};
using IntField = BatchField<std::int32_t>;
using LongField = BatchField<std::int64_t>;

inline constexpr std::tuple batch_fields{
    IntField{"tokens", &BatchSpans::tokens, &MicroBatch::tokens, PerField::row, true},
    IntField{"targets", &BatchSpans::targets, &MicroBatch::targets, PerField::row, true},
    IntField{"positions", &BatchSpans::positions, &MicroBatch::positions, PerField::row, true},
    LongField{"row ids", &BatchSpans::row_ids, &MicroBatch::rows, PerField::row, true},
    IntField{"document offsets", &BatchSpans::offsets, &MicroBatch::offsets, PerField::document, false},
    IntField{"tokens ahead", &BatchSpans::mtp_tokens, &MicroBatch::mtp_tokens, PerField::mtp_row, true},
    IntField{"targets ahead", &BatchSpans::mtp_targets, &MicroBatch::mtp_targets, PerField::mtp_row, true},
};

template <class Visit>
void for_each_batch_field(const Visit& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, batch_fields);
}

// The sizes of a microbatch that say how many elements each input has.
struct BatchSizes {
  std::int64_t rows = 0;
  std::int64_t mtp_depths = 0;
  bool packed = false;         // documents are packed
  std::int64_t all_rows = -1;  // rows of all context-parallel ranks; negative: as many as rows

  // The capacity of an input of this microbatch, the rows of this rank where it is split; 0: there is no such input.
  std::int64_t elements(PerField per, bool split) const {
    const std::int64_t here = split || all_rows < 0 ? rows : all_rows;
    if (per == PerField::mtp_row) return mtp_depths * here;
    if (per == PerField::document) return packed ? here + 1 : 0;
    return here;
  }
};

// Host memory for all inputs of a microbatch.
class BatchBuffers {
 public:
  explicit BatchBuffers(const BatchSizes& sizes);
  BatchBuffers(BatchBuffers&&) = default;  // the spans stay valid
  BatchBuffers& operator=(BatchBuffers&&) = default;

  const BatchSpans& spans() const { return spans_; }
  // The inputs as they are after BatchLoader::fill: with as many offsets as there are documents.
  BatchSpans filled(const BatchCounts& counts) const;

 private:
  std::array<std::vector<std::int32_t>, std::tuple_size_v<decltype(batch_fields)>> ints_;
  std::array<std::vector<std::int64_t>, std::tuple_size_v<decltype(batch_fields)>> longs_;
  BatchSpans spans_;
};

}  // namespace tera
