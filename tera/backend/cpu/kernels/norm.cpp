#include "tera/backend/cpu/kernels/norm.h"

#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

template <class T>
T* vector_at(const NormShape& shape, T* data, std::int64_t stride, std::int64_t v) {
  return data + v / shape.heads * stride + v % shape.heads * shape.width;
}

template <class T>
float mean_of(const T* x, std::int64_t width) {
  Slots sum;
  reduce_row(width, [&](auto i, auto n, int slot) { sum[slot] += load(x + i, n); });
  return sum.sum() / static_cast<float>(width);
}

template <class T>
float mean_square(const T* x, float mean, std::int64_t width) {
  Slots sum;
  reduce_row(width, [&](auto i, auto n, int slot) {
    const Vec centred = keep(load(x + i, n) - mean, n, zero());
    sum[slot] += centred * centred;
  });
  return sum.sum() / static_cast<float>(width);
}

// Only RMSNorm rounds before the weight is applied: published models were trained so.
template <bool layer, class T>
Vec normalised(Vec x, float mean, float rstd) {
  const Vec exact = (x - mean) * rstd;
  return layer ? exact : rounded<T>(exact);
}

template <bool layer, class T>
void forward(const NormForward& args, std::int64_t begin, std::int64_t end) {
  const auto* weight = static_cast<const T*>(args.weight);
  const auto* bias = static_cast<const T*>(args.bias);
  const std::int64_t width = args.shape.width;
  for (std::int64_t v = begin; v < end; ++v) {
    const T* x = vector_at(args.shape, static_cast<const T*>(args.x), args.x_stride, v);
    T* y = vector_at(args.shape, static_cast<T*>(args.y), args.y_stride, v);
    const float mean = layer ? mean_of(x, width) : 0.0f;
    const float rstd = 1.0f / __builtin_sqrtf(mean_square(x, mean, width) + args.eps);
    over_row(width, [&](auto i, auto n) {
      const Vec normed = normalised<layer, T>(load(x + i, n), mean, rstd);
      const Vec scaled = normed * load(weight + i, n);
      store(y + i, layer ? scaled + load(bias + i, n) : scaled, n);
    });
    args.rstd[v] = rstd;
    if (layer) args.mean[v] = mean;
  }
}

template <class T>
struct BackwardRow {
  const T *dy, *x, *weight, *residual;
  T* dx;
  float mean, rstd;
  std::int64_t width;
};

// Adds what this row gives to the weight's and the bias's gradient.
template <bool layer, class T>
void add_weight_gradient(const BackwardRow<T>& row, float* dweight, float* dbias) {
  if (dweight) {
    over_row(row.width, [&](auto i, auto n) {
      const Vec normed = normalised<layer, T>(load(row.x + i, n), row.mean, row.rstd);
      store(dweight + i, load(dweight + i, n) + load(row.dy + i, n) * normed, n);
    });
  }
  if (dbias) {
    over_row(row.width, [&](auto i, auto n) { store(dbias + i, load(dbias + i, n) + load(row.dy + i, n), n); });
  }
}

// dx = rstd * (g - mean(g) - x^ * mean(g x^)), g = dy * weight, x^ the normalised x; no mean(g) for rms_norm.
template <bool layer, class T>
void input_gradient(const BackwardRow<T>& row) {
  Slots sum_g, sum_gx;
  reduce_row(row.width, [&](auto i, auto n, int slot) {
    const Vec g = load(row.dy + i, n) * load(row.weight + i, n);  // zero after the end
    sum_gx[slot] += g * (load(row.x + i, n) - row.mean);
    if (layer) sum_g[slot] += g;
  });
  const float inverse = 1.0f / static_cast<float>(row.width);
  const float mean_g = layer ? sum_g.sum() * inverse : 0.0f;
  const float mean_gx = sum_gx.sum() * row.rstd * inverse;
  over_row(row.width, [&](auto i, auto n) {
    const Vec g = load(row.dy + i, n) * load(row.weight + i, n);
    const Vec normed = (load(row.x + i, n) - row.mean) * row.rstd;
    Vec dx = (g - mean_g - normed * mean_gx) * row.rstd;
    if (row.residual) dx += load(row.residual + i, n);
    store(row.dx + i, dx, n);
  });
}

template <bool layer, class T>
void backward(const NormBackward& args, std::int64_t begin, std::int64_t end, float* dweight, float* dbias) {
  const NormShape& shape = args.shape;
  const auto bytes = static_cast<std::size_t>(shape.width) * sizeof(float);
  if (dweight) std::memset(dweight, 0, bytes);
  if (dbias) std::memset(dbias, 0, bytes);
  const auto* residual = static_cast<const T*>(args.residual);
  for (std::int64_t v = begin; v < end; ++v) {
    const BackwardRow<T> row{.dy = vector_at(shape, static_cast<const T*>(args.dy), args.dy_stride, v),
                             .x = vector_at(shape, static_cast<const T*>(args.x), args.x_stride, v),
                             .weight = static_cast<const T*>(args.weight),
                             .residual = residual ? vector_at(shape, residual, args.residual_stride, v) : nullptr,
                             .dx = vector_at(shape, static_cast<T*>(args.dx), args.dx_stride, v),
                             .mean = layer ? args.mean[v] : 0.0f,
                             .rstd = args.rstd[v],
                             .width = shape.width};
    add_weight_gradient<layer>(row, dweight, dbias);  // first: dx may be dy
    input_gradient<layer>(row);
  }
}

constexpr NormKernels table = {.forward = {{forward<true, float>, forward<true, Bf16>, forward<true, Fp16>},
                                           {forward<false, float>, forward<false, Bf16>, forward<false, Fp16>}},
                               .backward = {{backward<true, float>, backward<true, Bf16>, backward<true, Fp16>},
                                            {backward<false, float>, backward<false, Bf16>, backward<false, Fp16>}}};

}  // namespace

template <>
const NormKernels& norm_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
