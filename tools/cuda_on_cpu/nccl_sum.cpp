#include "tools/cuda_on_cpu/nccl_sum.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace cuda_on_cpu::nccl {
namespace {

float wide(__half value) { return __half2float(value); }
float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
template <class T>
T wide(T value) {
  return value;
}

template <class T, class Wide>
T rounded(Wide value) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(value);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(value);
  else
    return static_cast<T>(value);
}

// Sums of integers wrap around.
template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  else
    return rounded<T>(wide(a) + wide(b));
}

template <class T>
T combine_one(ncclRedOp_t op, std::span<const std::byte* const> parts, std::size_t i) {
  const auto part = [&](std::size_t rank) { return reinterpret_cast<const T*>(parts[rank])[i]; };
  const auto ranks = static_cast<int>(parts.size());
  const bool mean = op == ncclAvg;
  const auto brought = [&](std::size_t rank) {
    if constexpr (std::is_integral_v<T>)
      return part(rank);
    else
      return mean ? rounded<T>(wide(part(rank)) * (1 / static_cast<decltype(wide(T{}))>(ranks))) : part(rank);
  };
  T all = brought(0);
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    const T one = brought(rank);
    switch (op) {
      case ncclMax: all = wide(all) < wide(one) ? one : all; break;
      case ncclMin: all = wide(one) < wide(all) ? one : all; break;
      case ncclProd: all = rounded<T>(wide(all) * wide(one)); break;
      default: all = add(all, one); break;
    }
  }
  if constexpr (std::is_integral_v<T>)
    if (mean) all = static_cast<T>(all / static_cast<T>(ranks));
  return all;
}

template <class T>
void combine_as(ncclRedOp_t op, std::span<const std::byte* const> parts, std::byte* result, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) reinterpret_cast<T*>(result)[i] = combine_one<T>(op, parts, i);
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

const char* name_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: return "int8";
    case ncclUint8: return "uint8";
    case ncclFloat16: return "float16";
    case ncclBfloat16: return "bfloat16";
    case ncclInt32: return "int32";
    case ncclUint32: return "uint32";
    case ncclFloat32: return "float32";
    case ncclInt64: return "int64";
    case ncclUint64: return "uint64";
    case ncclFloat64: return "float64";
    default: return "unknown";
  }
}

const char* name_of(ncclRedOp_t op) {
  switch (op) {
    case ncclSum: return "sum";
    case ncclProd: return "product";
    case ncclMax: return "maximum";
    case ncclMin: return "minimum";
    case ncclAvg: return "mean";
    default: return nullptr;
  }
}

void combine(ncclDataType_t type, ncclRedOp_t op, std::span<const std::byte* const> parts, std::byte* result,
             std::size_t count) {
  switch (type) {
    case ncclInt8: return combine_as<std::int8_t>(op, parts, result, count);
    case ncclUint8: return combine_as<std::uint8_t>(op, parts, result, count);
    case ncclInt32: return combine_as<std::int32_t>(op, parts, result, count);
    case ncclUint32: return combine_as<std::uint32_t>(op, parts, result, count);
    case ncclInt64: return combine_as<std::int64_t>(op, parts, result, count);
    case ncclUint64: return combine_as<std::uint64_t>(op, parts, result, count);
    case ncclFloat16: return combine_as<__half>(op, parts, result, count);
    case ncclBfloat16: return combine_as<__nv_bfloat16>(op, parts, result, count);
    case ncclFloat32: return combine_as<float>(op, parts, result, count);
    case ncclFloat64: return combine_as<double>(op, parts, result, count);
    default: return;
  }
}

}  // namespace cuda_on_cpu::nccl
