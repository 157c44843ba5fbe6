#include <bit>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/copy.cuh"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/ops/copy.h"

namespace tera::cuda {
namespace {

// The last dims, merged as far as both strides allow, are a run; the dims in front of them are the outer ones.
kernels::Runs runs_of(const Tensor& src, const Tensor& dst) {
  kernels::Runs runs{.length = 1, .count = 1, .outer = {}, .src_stride = {}, .dst_stride = {}, .rank = 0};
  int d = src.shape.rank - 1;
  for (; d >= 0; --d) {
    const bool goes_on = src.shape[d] == 1 || (src.stride[d] == runs.length && dst.stride[d] == runs.length);
    if (!goes_on) break;
    runs.length *= src.shape[d];
  }
  static_assert(Shape::max_rank - 1 == kernels::Runs::max_rank);  // the last dim is dense, so it is in the run
  for (int i = 0; i <= d; ++i) {
    if (src.shape[i] == 1) continue;
    runs.outer[runs.rank] = src.shape[i];
    runs.src_stride[runs.rank] = src.stride[i];
    runs.dst_stride[runs.rank] = dst.stride[i];
    runs.count *= src.shape[i];
    runs.rank += 1;
  }
  return runs;
}

// The value as `dtype` stores it, in the low bytes.
std::uint64_t bits_of(DType dtype, double value) {
  const auto as_float = static_cast<float>(value);
  switch (dtype) {
    case DType::f32: return std::bit_cast<std::uint32_t>(as_float);
    case DType::bf16: return to_bf16(as_float).bits;
    case DType::f16: return to_f16(as_float).bits;
    case DType::f64: return std::bit_cast<std::uint64_t>(value);
    case DType::i32: return static_cast<std::uint32_t>(static_cast<std::int32_t>(value));
    case DType::i64: return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    case DType::u8: return static_cast<std::uint8_t>(value);
  }
  return 0;
}

}  // namespace

template <>
void CudaOps::compute(const CopyArgs& args) {
  const kernels::Runs runs = runs_of(args.src, args.dst);
  const Tensor &src = args.src, &dst = args.dst;
  if (src.dtype != dst.dtype) {
    check(kernels::launch_convert(src.data, scalar_of(src.dtype), dst.data, scalar_of(dst.dtype), runs, stream_),
          "copy");
  } else if (runs.rank == 0) {
    check(cudaMemcpyAsync(dst.data, src.data, src.bytes(), cudaMemcpyDeviceToDevice, stream_), "copy");
  } else {
    check(kernels::launch_move(src.data, dst.data, static_cast<int>(size_of(src.dtype)), runs, stream_), "copy");
  }
}

template <>
void CudaOps::compute(const FillArgs& args) {
  const std::uint64_t bits = bits_of(args.out.dtype, args.value);
  if (bits == 0) {
    check(cudaMemsetAsync(args.out.data, 0, args.out.bytes(), stream_), "fill");
    return;
  }
  check(kernels::launch_fill(args.out.data, static_cast<int>(size_of(args.out.dtype)), bits, count(args.out.shape),
                             stream_),
        "fill");
}

// A CUDA graph would read the ring's memory at each replay, whatever is there then.
void CudaOps::do_from_host(std::span<const std::byte> host, const Tensor& tensor) {
  require(!recording_, "bytes of the host's memory cannot be part of a graph");
  staging_.copy(host, tensor.data, stream_, guard_);
}

void CudaOps::do_to_host(const Tensor& tensor, std::span<std::byte> host) {
  if (guard_ != nullptr) finish(record().id);  // the copy itself waits without the guard
  check(cudaMemcpyAsync(host.data(), tensor.data, host.size(), cudaMemcpyDeviceToHost, stream_), "to_host");
  check(cudaStreamSynchronize(stream_), "to_host");
}

void CudaOps::do_to_host_later(const Tensor& tensor, std::span<std::byte> host) {
  check(cudaMemcpyAsync(host.data(), tensor.data, host.size(), cudaMemcpyDeviceToHost, stream_), "to_host_later");
}

CopyPoints CudaOps::do_to_host_overlapped(const HostCopyArgs& args) {
  to_host_.wait(args.after);
  to_host_.wait(args.and_after);
  return to_host_.copy(args.host.data(), args.tensor.data, args.host.size(), cudaMemcpyDeviceToHost);
}

CopyPoints CudaOps::do_from_host_overlapped(const HostCopyArgs& args) {
  from_host_.wait(args.after);
  from_host_.wait(args.and_after);
  return from_host_.copy(args.tensor.data, args.host.data(), args.host.size(), cudaMemcpyHostToDevice);
}

}  // namespace tera::cuda
