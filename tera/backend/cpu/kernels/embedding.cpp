#include "tera/backend/cpu/kernels/embedding.h"

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

template <class T>
void forward(const EmbeddingForward& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.width;
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(T);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t id = args.tokens[row] - args.first;
    const bool here = id >= 0 && id < args.table_rows;
    T* y = static_cast<T*>(args.y) + row * width;
    if (here)
      std::memcpy(y, static_cast<const T*>(args.table) + id * width, bytes);
    else
      std::memset(static_cast<void*>(y), 0, bytes);
    if (!args.positions) continue;
    const T* position = static_cast<const T*>(args.position_table) + args.positions[row] * width;
    over_row(width, [&](auto i, auto n) { store(y + i, load(y + i, n) + load(position + i, n), n); });
  }
}

template <class T>
void backward(const EmbeddingBackward& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const std::int64_t id = args.ids[row] - args.first;
    if (id < 0 || id >= args.table_rows) continue;
    const T* dy = static_cast<const T*>(args.dy) + row * args.width + begin;
    float* out = args.dtable + id * args.width + begin;
    over_row(end - begin, [&](auto i, auto n) { store(out + i, load(out + i, n) + load(dy + i, n), n); });
  }
}

constexpr EmbeddingKernels table = {.forward = {forward<float>, forward<Bf16>, forward<Fp16>},
                                    .backward = {backward<float>, backward<Bf16>, backward<Fp16>}};

}  // namespace

template <>
const EmbeddingKernels& embedding_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
