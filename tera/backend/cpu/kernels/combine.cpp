#include "tera/backend/cpu/kernels/combine.h"

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

// Reductions: join() of two values, and close() of the last one. Each has one formula for vectors and scalars.
struct Sum {
  static auto join(auto a, auto b) { return a + b; }
  static auto close(auto total, std::int64_t) { return total; }
};
struct Mean {
  static auto join(auto a, auto b) { return a + b; }
  static Vec close(Vec total, std::int64_t number) { return total / splat(static_cast<float>(number)); }
  static double close(double total, std::int64_t number) { return total / static_cast<double>(number); }
};
struct Max {
  static Vec join(Vec a, Vec b) { return ((b > a) | (b != b)) ? b : a; }  // a NaN stays
  static double join(double a, double b) { return b > a || b != b ? b : a; }
  static auto join(auto a, auto b) { return b > a ? b : a; }
  static auto close(auto maximum, std::int64_t) { return maximum; }
};

template <class T, class How>
void combine_floats(const void* const* sources, std::int64_t number, std::int64_t begin, std::int64_t count,
                    void* out) {
  const auto at = [=](std::int64_t source) { return static_cast<const T*>(sources[source]) + begin; };
  auto* to = static_cast<T*>(out) + begin;
  over_row(count, [&](auto i, auto n) {
    Vec total = load(at(0) + i, n);
    for (std::int64_t s = 1; s < number; ++s) total = How::join(total, load(at(s) + i, n));
    store(to + i, How::close(total, number), n);
  });
}

// Integers are added as unsigned ones, whose overflow is defined.
template <class T, class How>
void combine_wide(const void* const* sources, std::int64_t number, std::int64_t begin, std::int64_t count, void* out) {
  const auto at = [=](std::int64_t source) { return static_cast<const T*>(sources[source]) + begin; };
  auto* to = static_cast<T*>(out) + begin;
  for (std::int64_t i = 0; i < count; ++i) {
    T total = at(0)[i];
    for (std::int64_t s = 1; s < number; ++s) total = How::join(total, at(s)[i]);
    to[i] = How::close(total, number);
  }
}

template <class How>
constexpr CombineKernels::Kernel of_floats[3] = {combine_floats<float, How>, combine_floats<Bf16, How>,
                                                 combine_floats<Fp16, How>};

constexpr CombineKernels table = {
    .combine = {{of_floats<Sum>[0], of_floats<Sum>[1], of_floats<Sum>[2], combine_wide<double, Sum>,
                 combine_wide<std::uint32_t, Sum>, combine_wide<std::uint64_t, Sum>, nullptr},
                {of_floats<Mean>[0], of_floats<Mean>[1], of_floats<Mean>[2], combine_wide<double, Mean>, nullptr,
                 nullptr, nullptr},
                {of_floats<Max>[0], of_floats<Max>[1], of_floats<Max>[2], combine_wide<double, Max>,
                 combine_wide<std::int32_t, Max>, combine_wide<std::int64_t, Max>, nullptr}}};

}  // namespace

template <>
const CombineKernels& combine_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
