#include "tera/checkpoint/convert.h"

#include <cstring>

#include "tera/base/error.h"

namespace tera {
namespace {

template <class From, class To>
To convert_one(From value) {
  const float x = to_float(value);
  if constexpr (std::is_same_v<To, BFloat16>)
    return to_bf16(x);
  else if constexpr (std::is_same_v<To, Float16>)
    return to_f16(x);
  else
    return x;
}

template <class From, class To>
void convert_as(const std::byte* from, std::byte* to, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    From value;
    std::memcpy(&value, from + static_cast<std::size_t>(i) * sizeof(From), sizeof(From));
    const To converted = convert_one<From, To>(value);
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof(To), &converted, sizeof(To));
  }
}

template <class From>
void convert_from(const std::byte* from, std::byte* to, DType as, std::int64_t elements) {
  switch (as) {
    case DType::f32: return convert_as<From, float>(from, to, elements);
    case DType::bf16: return convert_as<From, BFloat16>(from, to, elements);
    case DType::f16: return convert_as<From, Float16>(from, to, elements);
    default: fail("no conversion to {}", name_of(as));
  }
}

}  // namespace

void convert(const std::byte* from, DType stored, std::byte* to, DType as, std::int64_t elements) {
  if (stored == as) {
    std::memcpy(to, from, static_cast<std::size_t>(elements) * size_of(as));
    return;
  }
  switch (stored) {
    case DType::f32: return convert_from<float>(from, to, as, elements);
    case DType::bf16: return convert_from<BFloat16>(from, to, as, elements);
    case DType::f16: return convert_from<Float16>(from, to, as, elements);
    default: fail("no conversion from {}", name_of(stored));
  }
}

}  // namespace tera
