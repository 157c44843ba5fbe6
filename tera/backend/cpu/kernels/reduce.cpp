#include "tera/backend/cpu/kernels/reduce.h"

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

// Half a vector of floats widens to one vector of doubles.
constexpr int half = lanes / 2;
using HalfVec = float __attribute__((vector_size(half * 4)));
using DoubleVec = double __attribute__((vector_size(half * 8)));

DoubleVec load_doubles(const float* p) {
  HalfVec v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, DoubleVec);
}

template <bool squares>
double sum(const float* x, std::int64_t count) {
  DoubleVec part[slots] = {};
  std::int64_t i = 0;
  for (; i + slots * half <= count; i += slots * half) {
    for (int slot = 0; slot < slots; ++slot) {
      const DoubleVec v = load_doubles(x + i + slot * half);
      part[slot] += squares ? v * v : v;
    }
  }
  const DoubleVec all = (part[0] + part[1]) + (part[2] + part[3]);
  double total = 0;
  for (int lane = 0; lane < half; ++lane) total += all[lane];
  for (; i < count; ++i) total += squares ? static_cast<double>(x[i]) * x[i] : static_cast<double>(x[i]);
  return total;
}

template <class T>
void sum_rows(const void* data, std::int64_t stride, std::int64_t rows, std::int64_t width, float* out) {
  const auto* x = static_cast<const T*>(data);
  std::memset(out, 0, static_cast<std::size_t>(width) * sizeof(float));
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {  // four rows per pass over out
    const T* p = x + row * stride;
    over_row(width, [&](auto i, auto n) {
      const Vec pair0 = load(p + i, n) + load(p + stride + i, n);
      const Vec pair1 = load(p + 2 * stride + i, n) + load(p + 3 * stride + i, n);
      store(out + i, load(out + i, n) + (pair0 + pair1), n);
    });
  }
  for (; row < rows; ++row)
    over_row(width, [&](auto i, auto n) { store(out + i, load(out + i, n) + load(x + row * stride + i, n), n); });
}

void add_rows(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t width, float* out) {
  over_row(width, [&](auto i, auto n) {
    Vec total = zero();
    for (std::int64_t row = 0; row < rows; ++row) total += load(x + row * stride + i, n);
    store(out + i, load(out + i, n) + total, n);
  });
}

constexpr ReduceKernels table = {.sum = sum<false>,
                                 .sum_squares = sum<true>,
                                 .sum_rows = {sum_rows<float>, sum_rows<Bf16>, sum_rows<Fp16>},
                                 .add_rows = add_rows};

}  // namespace

template <>
const ReduceKernels& reduce_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
