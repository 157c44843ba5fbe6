#include "tera/backend/cpu/kernels/copy.h"

#include <cstring>

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/ops/copy.h"

namespace tera::cpu {
namespace {

// A copy as runs of contiguous elements: the last dims, merged as far as both strides allow.
struct Runs {
  std::int64_t length = 1, count = 1;
  Shape outer, src_stride, dst_stride;  // dims outside a run
};

Runs runs_of(const Tensor& src, const Tensor& dst) {
  Runs runs;
  int d = src.shape.rank - 1;
  for (; d >= 0; --d) {
    const bool goes_on = src.shape[d] == 1 || (src.stride[d] == runs.length && dst.stride[d] == runs.length);
    if (!goes_on) break;
    runs.length *= src.shape[d];
  }
  runs.outer.rank = d + 1;
  for (int i = 0; i <= d; ++i) {
    runs.outer[i] = src.shape[i];
    runs.src_stride[i] = src.stride[i];
    runs.dst_stride[i] = dst.stride[i];
    runs.count *= src.shape[i];
  }
  return runs;
}

std::int64_t offset_of(std::int64_t run, const Shape& outer, const Shape& stride) {
  std::int64_t offset = 0;
  for (int d = outer.rank - 1; d >= 0; --d) {
    offset += run % outer[d] * stride[d];
    run /= outer[d];
  }
  return offset;
}

template <class T>
void fill_values(ThreadPool& pool, const Tensor& out, T value) {
  auto* values = static_cast<T*>(out.data);
  run_blocks(pool, element_blocks(count(out.shape)),
             [&](std::int64_t begin, std::int64_t end) { std::fill(values + begin, values + end, value); });
}

}  // namespace

template <>
void CpuOps::compute(const CopyArgs& args) {
  const Runs runs = runs_of(args.src, args.dst);
  const auto src_size = static_cast<std::int64_t>(size_of(args.src.dtype));
  const auto dst_size = static_cast<std::int64_t>(size_of(args.dst.dtype));
  const bool same = args.src.dtype == args.dst.dtype;
  const auto& kernels = pick(isa_, []<Isa i>() -> const CopyKernels& { return copy_kernels<i>(); });
  const auto convert =
      same ? nullptr : kernels.convert[static_cast<int>(args.src.dtype)][static_cast<int>(args.dst.dtype)];
  const auto copy_part = [&](std::int64_t run, std::int64_t begin, std::int64_t end) {
    const auto* src =
        static_cast<const std::byte*>(args.src.data) + (offset_of(run, runs.outer, runs.src_stride) + begin) * src_size;
    auto* dst =
        static_cast<std::byte*>(args.dst.data) + (offset_of(run, runs.outer, runs.dst_stride) + begin) * dst_size;
    if (same)
      kernels.move(src, dst, (end - begin) * src_size);
    else
      convert(src, dst, end - begin);
  };
  if (runs.count == 1) {
    run_blocks(pool_, element_blocks(runs.length),
               [&](std::int64_t begin, std::int64_t end) { copy_part(0, begin, end); });
  } else {
    run_blocks(pool_, row_blocks(runs.count, runs.length), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t run = begin; run < end; ++run) copy_part(run, 0, runs.length);
    });
  }
}

template <>
void CpuOps::compute(const FillArgs& args) {
  const auto as_float = static_cast<float>(args.value);
  switch (args.out.dtype) {
    case DType::f32: return fill_values(pool_, args.out, as_float);
    case DType::bf16: return fill_values(pool_, args.out, to_bf16(as_float));
    case DType::f16: return fill_values(pool_, args.out, to_f16(as_float));
    case DType::f64: return fill_values(pool_, args.out, args.value);
    case DType::i32: return fill_values(pool_, args.out, static_cast<std::int32_t>(args.value));
    case DType::i64: return fill_values(pool_, args.out, static_cast<std::int64_t>(args.value));
    case DType::u8: return fill_values(pool_, args.out, static_cast<std::uint8_t>(args.value));
  }
}

void CpuOps::do_from_host(std::span<const std::byte> host, const Tensor& tensor) {
  if (!host.empty()) std::memcpy(tensor.data, host.data(), host.size());
}

void CpuOps::do_to_host(const Tensor& tensor, std::span<std::byte> host) {
  if (!host.empty()) std::memcpy(host.data(), tensor.data, host.size());
}

}  // namespace tera::cpu
