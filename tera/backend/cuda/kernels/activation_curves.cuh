#pragma once
// Activation functions and their derivatives, and the dispatch of a kernel by curve, type and vector width.

#include "tera/backend/cuda/kernels/pointwise.cuh"
#include "tera/backend/cuda/kernels/rows.cuh"

#ifdef __CUDACC__
namespace tera::cuda::kernels {

__device__ inline float sigmoid(float x) { return reciprocal_approx(1.0f + exp2_approx(-log2_e * x)); }

// An activation gives its value and its derivative; what the caller does not use costs nothing.
struct Point {
  float value, slope;
};

// GELU with the normal distribution's density and its integral, Abramowitz and Stegun 26.2.17 (7.5e-8 absolute): one
// exponential serves both.
struct Gelu {
  __device__ static Point at(float x) {
    const float density = 0.3989422804f * exp2_approx(-0.5f * log2_e * x * x);
    const float t = reciprocal_approx(1.0f + 0.2316419f * fabsf(x));
    float p = 1.330274429f;
    p = p * t - 1.821255978f;
    p = p * t + 1.781477937f;
    p = p * t - 0.356563782f;
    p = p * t + 0.319381530f;
    const float upper_tail = density * p * t, integral = x < 0.0f ? upper_tail : 1.0f - upper_tail;
    return {x * integral, integral + x * density};
  }
};

struct GeluTanh {
  __device__ static Point at(float x) {
    constexpr float two_root = 1.5957691216f, cubic = 0.044715f;  // 2 sqrt(2/pi)
    // (1 + tanh u) / 2 = sigmoid(2u), u = sqrt(2/pi) (x + cubic x^3)
    const float s = sigmoid(two_root * x * (1.0f + cubic * x * x));
    const float inner = two_root * (1.0f + 3.0f * cubic * x * x);
    // Far out s (1 - s) is zero while inner overflows; fminf keeps their product from being NaN.
    return {x * s, s + x * s * (1.0f - s) * fminf(inner, 1e30f)};
  }
};

struct SquaredRelu {
  __device__ static Point at(float x) {
    const float positive = x < 0.0f ? 0.0f : x;  // NaN stays
    return {positive * positive, 2.0f * positive};
  }
};

struct Silu {
  __device__ static Point at(float x) {
    const float s = sigmoid(x);
    return {x * s, s + x * s * (1.0f - s)};
  }
};

template <class Launch>
auto with_curve(Curve curve, const Launch& launch) {
  switch (curve) {
    case Curve::gelu: return launch(Gelu{});
    case Curve::gelu_tanh: return launch(GeluTanh{});
    case Curve::squared_relu: return launch(SquaredRelu{});
    default: return launch(Silu{});
  }
}

// launch(Act{}, T{}, N) for the curve, the type and the pack size of this call.
template <class Args, class Launch>
void with_activation(const Args& args, const void* a, const void* b, const void* c, const Launch& launch) {
  with_curve(args.curve, [&](auto act) {
    with_type(args.scalar, [&](auto zero) {
      using T = decltype(zero);
      const bool vectorized = aligned16<T>(a, args.width) && aligned16<T>(b) && aligned16<T>(c);
      with_pack<T>(vectorized, [&](auto pack) { launch(act, zero, pack); });
    });
  });
}

}  // namespace tera::cuda::kernels
#endif
