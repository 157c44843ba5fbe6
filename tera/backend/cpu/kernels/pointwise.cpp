#include "tera/backend/cpu/kernels/pointwise.h"

#include "tera/backend/cpu/kernels/math.h"
#include "tera/backend/cpu/kernels/philox.h"
#include "tera/backend/cpu/kernels/rows.h"

namespace tera::cpu {
namespace {

// An activation gives its value and its derivative; what the caller does not use costs nothing.
struct Curve {
  Vec value, slope;
};

struct Gelu {
  static Curve at(Vec x) {
    const Normal normal = normal_distribution(x);
    return {x * normal.integral, normal.integral + x * normal.density};
  }
};

struct GeluTanh {
  static Curve at(Vec x) {
    constexpr float two_root = 1.5957691216f, cubic = 0.044715f;  // 2 sqrt(2/pi)
    // (1 + tanh u) / 2 = sigmoid(2u), u = sqrt(2/pi) (x + cubic x^3)
    const Vec s = sigmoid(two_root * x * (1.0f + cubic * x * x));
    const Vec inner = two_root * (1.0f + 3.0f * cubic * x * x);
    // Far out s (1 - s) is zero while inner overflows; min keeps their product from being NaN.
    return {x * s, s + x * s * (1.0f - s) * vmin(inner, splat(1e30f))};
  }
};

struct SquaredRelu {
  static Curve at(Vec x) {
    const Vec positive = x < 0.0f ? zero() : x;  // NaN stays
    return {positive * positive, 2.0f * positive};
  }
};

struct Silu {
  static Curve at(Vec x) {
    const Vec s = sigmoid(x);
    return {x * s, s + x * s * (1.0f - s)};
  }
};

// Whether a row with sources has a weight. If not, it becomes zeros or is not written.
template <class T>
bool has_weight(std::int32_t source, T* row, std::int64_t width) {
  if (source == -1) std::memset(static_cast<void*>(row), 0, static_cast<std::size_t>(width) * sizeof(T));
  return source >= 0;
}

template <class Act, bool gated, class T>
void activation(const ActivationForward& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.width, x_width = gated ? 2 * width : width;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * x_width;
    T* y = static_cast<T*>(args.y) + row * width;
    if (args.sources && !has_weight(args.sources[row], y, width)) continue;
    const float weight = args.sources ? args.weights[args.sources[row]] : 1.0f;
    over_row(width, [&](auto i, auto n) {
      const Vec value = Act::at(load(x + i, n)).value;
      store(y + i, weight * (gated ? value * load(x + width + i, n) : value), n);
    });
  }
}

template <class Act, bool gated, bool weighted, class T>
void back_rows(const ActivationBackward& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.width, x_width = gated ? 2 * width : width;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* dy = static_cast<const T*>(args.dy) + row * width;
    const T* x = static_cast<const T*>(args.x) + row * x_width;
    T* dx = static_cast<T*>(args.dx) + row * x_width;
    if (weighted && !has_weight(args.sources[row], dx, x_width)) continue;
    const float weight = weighted ? args.weights[args.sources[row]] : 1.0f;
    Vec dweight = zero();
    over_row(width, [&](auto i, auto n) {
      Vec grad = load(dy + i, n);
      const Curve curve = Act::at(load(x + i, n));
      const Vec up = gated ? load(x + width + i, n) : splat(1.0f);  // read before dx, which may be x, is written
      if constexpr (weighted) {
        dweight += grad * (curve.value * up);
        grad = weight * grad;
      }
      if constexpr (gated) {
        store(dx + i, grad * up * curve.slope, n);
        store(dx + width + i, grad * curve.value, n);
      } else {
        store(dx + i, grad * curve.slope, n);
      }
    });
    if constexpr (weighted) args.dweights[args.sources[row]] = sum_lanes(dweight);
  }
}

template <class Act, bool gated, class T>
void activation_back(const ActivationBackward& args, std::int64_t begin, std::int64_t end) {
  if (args.sources)
    back_rows<Act, gated, true, T>(args, begin, end);
  else
    back_rows<Act, gated, false, T>(args, begin, end);
}

// factor[c] is 0, or 1 / (1 - rate) where column first + c is kept.
constexpr int dropout_columns = 4 * philox_width;
void draw_factors(const DropoutForward& args, std::int64_t row, std::int64_t first, float* factor) {
  PhiloxWords drawn;
  philox_blocks(args.key, static_cast<std::uint64_t>(args.rows[row]), static_cast<std::uint64_t>(first / 4), drawn);
  const float kept = 1.0f / (1.0f - args.rate);
  alignas(64) float by_word[4][philox_width];
  for (int w = 0; w < 4; ++w) {
    for (int block = 0; block < philox_width; ++block) {
      const float uniform = static_cast<float>(static_cast<std::int32_t>(drawn.word[w][block] >> 8)) * 0x1p-24f;
      by_word[w][block] = uniform >= args.rate ? kept : 0.0f;
    }
  }
  for (int block = 0; block < philox_width; ++block) {  // a loop of its own, which compilers turn into shuffles
    factor[4 * block + 0] = by_word[0][block];
    factor[4 * block + 1] = by_word[1][block];
    factor[4 * block + 2] = by_word[2][block];
    factor[4 * block + 3] = by_word[3][block];
  }
}

template <class T>
void dropout(const DropoutForward& args, std::int64_t begin, std::int64_t end) {
  alignas(64) float factor[dropout_columns];
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t first = 0; first < args.width; first += dropout_columns) {
      draw_factors(args, row, first, factor);
      const std::int64_t offset = row * args.width + first, left = args.width - first;
      const T* x = static_cast<const T*>(args.x) + offset;
      const T* residual = args.residual ? static_cast<const T*>(args.residual) + offset : nullptr;
      T* y = static_cast<T*>(args.y) + offset;
      over_row(left < dropout_columns ? left : dropout_columns, [&](auto i, auto n) {
        const Vec f = load(factor + i);
        const Vec kept = f == 0.0f ? zero() : load(x + i, n) * f;  // a dropped infinity is dropped
        store(y + i, residual ? load(residual + i, n) + kept : kept, n);
      });
    }
  }
}

constexpr PointwiseKernels table =
    {.activation = {{activation<Gelu, false, float>, activation<Gelu, false, Bf16>, activation<Gelu, false, Fp16>},
                    {activation<GeluTanh, false, float>, activation<GeluTanh, false, Bf16>,
                     activation<GeluTanh, false, Fp16>},
                    {activation<SquaredRelu, false, float>, activation<SquaredRelu, false, Bf16>,
                     activation<SquaredRelu, false, Fp16>},
                    {activation<Silu, false, float>, activation<Silu, false, Bf16>, activation<Silu, false, Fp16>},
                    {activation<Silu, true, float>, activation<Silu, true, Bf16>, activation<Silu, true, Fp16>},
                    {activation<Gelu, true, float>, activation<Gelu, true, Bf16>, activation<Gelu, true, Fp16>},
                    {activation<GeluTanh, true, float>, activation<GeluTanh, true, Bf16>,
                     activation<GeluTanh, true, Fp16>}},
     .activation_back =
         {{activation_back<Gelu, false, float>, activation_back<Gelu, false, Bf16>, activation_back<Gelu, false, Fp16>},
          {activation_back<GeluTanh, false, float>, activation_back<GeluTanh, false, Bf16>,
           activation_back<GeluTanh, false, Fp16>},
          {activation_back<SquaredRelu, false, float>, activation_back<SquaredRelu, false, Bf16>,
           activation_back<SquaredRelu, false, Fp16>},
          {activation_back<Silu, false, float>, activation_back<Silu, false, Bf16>, activation_back<Silu, false, Fp16>},
          {activation_back<Silu, true, float>, activation_back<Silu, true, Bf16>, activation_back<Silu, true, Fp16>},
          {activation_back<Gelu, true, float>, activation_back<Gelu, true, Bf16>, activation_back<Gelu, true, Fp16>},
          {activation_back<GeluTanh, true, float>, activation_back<GeluTanh, true, Bf16>,
           activation_back<GeluTanh, true, Fp16>}},
     .dropout = {dropout<float>, dropout<Bf16>, dropout<Fp16>}};

}  // namespace

template <>
const PointwiseKernels& pointwise_kernels<TERA_ISA>() {
  return table;
}

}  // namespace tera::cpu
