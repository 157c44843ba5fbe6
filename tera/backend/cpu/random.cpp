#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/error.h"

namespace tera::cpu {
namespace {

// Blocks of tasks begin at multiples of four, as the stream's draws do.
static_assert(task_elements % 4 == 0);

template <class T>
void draw(ThreadPool& pool, const NormalArgs& args) {
  T* out = args.out.as<T>();
  run_blocks(pool, element_blocks(count(args.out.shape)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += 4) {
      const auto normals = normals_at(args.key, static_cast<std::uint64_t>(i / 4));
      for (std::int64_t j = 0; j < 4 && i + j < end; ++j) out[i + j] = from_float<T>(args.std * normals[j]);
    }
  });
}

}  // namespace

void CpuOps::do_normal(const NormalArgs& args) {
  switch (args.out.dtype) {
    case DType::f32: return draw<float>(pool_, args);
    case DType::bf16: return draw<BFloat16>(pool_, args);
    case DType::f16: return draw<Float16>(pool_, args);
    default: fail("normal: {}", to_string(args.out));
  }
}

}  // namespace tera::cpu
