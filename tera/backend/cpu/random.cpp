#include "tera/ops/random.h"
#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"

namespace tera::cpu {
namespace {

// Draws number first, first + 1, ... of the Philox stream, which makes four at a time.
template <class T>
void draw_run(const NormalArgs& args, T* out, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count;) {
    const auto draw = static_cast<std::uint64_t>(first + i);
    const auto normals = normals_at(args.key, draw / 4);
    for (std::size_t j = draw % 4; j < 4 && i < count; ++j, ++i) out[i] = from_float<T>(args.std * normals[j]);
  }
}

template <class T>
void draw(ThreadPool& pool, const NormalArgs& args) {
  T* out = args.out.as<T>();
  const std::int64_t elements = count(args.out.shape);
  const std::int64_t width = args.row_stride == 0 ? elements : args.out.shape.last();  // size of the contiguous runs
  run_blocks(pool, element_blocks(elements), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t row = i / width, column = i % width, run = std::min(end - i, width - column);
      draw_run(args, out + i, args.first + row * args.row_stride + column, run);
      i += run;
    }
  });
}

}  // namespace

template <>
void CpuOps::compute(const NormalArgs& args) {
  switch (args.out.dtype) {
    case DType::f32: return draw<float>(pool_, args);
    case DType::bf16: return draw<BFloat16>(pool_, args);
    case DType::f16: return draw<Float16>(pool_, args);
    default: fail("normal: {}", to_string(args.out));
  }
}

}  // namespace tera::cpu
