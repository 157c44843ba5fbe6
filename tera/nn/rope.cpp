#include "tera/nn/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tera/ops/rope.h"

namespace tera {
namespace {

// Llama 3.1: long waves are slowed by the factor, short ones kept, those between blended.
double llama3_frequency(const RopeSpec& spec, double frequency) {
  const double waves =
      static_cast<double>(spec.scaling.original_max_position_embeddings) * frequency / (2 * std::numbers::pi);
  if (waves > spec.scaling.high_freq_factor) return frequency;
  if (waves < spec.scaling.low_freq_factor) return frequency / spec.scaling.factor;
  const double blend =
      (waves - spec.scaling.low_freq_factor) / (spec.scaling.high_freq_factor - spec.scaling.low_freq_factor);
  return (1 - blend) * frequency / spec.scaling.factor + blend * frequency;
}

// YaRN: frequencies of pairs that make more than beta_fast rotations in the original context are kept, those of pairs
// that make less than beta_slow are divided by the factor; a ramp lies between.
double yarn_frequency(const RopeSpec& spec, double frequency, std::int64_t pair) {
  const auto dim = static_cast<double>(spec.rotary_dim);
  const auto pair_of_rotations = [&](double rotations) {
    return dim *
           std::log(static_cast<double>(spec.scaling.original_max_position_embeddings) /
                    (2 * std::numbers::pi * rotations)) /
           (2 * std::log(spec.base));
  };
  double low = pair_of_rotations(spec.scaling.beta_fast), high = pair_of_rotations(spec.scaling.beta_slow);
  if (spec.scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return ramp * frequency / spec.scaling.factor + (1 - ramp) * frequency;
}

// What the angles depend on: layers that agree in it share a table. Plans build thousands of layers, so the angles
// themselves are not computed for a comparison.
std::vector<double> angles_of(const RopeSpec& spec) {
  const RopeScaling& scaling = spec.scaling;
  return {static_cast<double>(spec.rotary_dim),
          spec.base,
          static_cast<double>(scaling.type),
          scaling.factor,
          scaling.low_freq_factor,
          scaling.high_freq_factor,
          static_cast<double>(scaling.original_max_position_embeddings),
          scaling.beta_fast,
          scaling.beta_slow,
          scaling.mscale,
          scaling.mscale_all_dim,
          scaling.attention_factor,
          static_cast<double>(scaling.truncate)};
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& spec) {
  std::vector<double> frequencies;
  for (std::int64_t pair = 0; pair < spec.rotary_dim / 2; ++pair) {
    const double plain = std::pow(spec.base, -2.0 * static_cast<double>(pair) / static_cast<double>(spec.rotary_dim));
    switch (spec.scaling.type) {
      case RopeScalingKind::none: frequencies.push_back(plain); break;
      case RopeScalingKind::linear: frequencies.push_back(plain / spec.scaling.factor); break;
      case RopeScalingKind::llama3: frequencies.push_back(llama3_frequency(spec, plain)); break;
      case RopeScalingKind::yarn: frequencies.push_back(yarn_frequency(spec, plain, pair)); break;
    }
  }
  return frequencies;
}

double yarn_growth(const RopeScaling& scaling, double mscale) {
  return scaling.factor <= 1 ? 1 : 0.1 * mscale * std::log(scaling.factor) + 1;
}

double rope_magnitude(const RopeSpec& spec) {
  const RopeScaling& scaling = spec.scaling;
  if (scaling.type != RopeScalingKind::yarn) return 1;
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  return scaling.mscale != 0 && scaling.mscale_all_dim != 0
             ? yarn_growth(scaling, scaling.mscale) / yarn_growth(scaling, scaling.mscale_all_dim)
             : yarn_growth(scaling, 1);
}

Rope::Rope(ParamStore& params, const RopeSpec& spec) : interleaved_(spec.interleaved) {
  const auto add = [&](const char* name, double (*wave)(double)) {
    const auto fill = [spec, wave](std::span<float> out) {
      const std::vector<double> frequencies = rope_frequencies(spec);
      const double magnitude = rope_magnitude(spec);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const auto position = static_cast<float>(i / frequencies.size());
        // Angles in fp32, as every published model was trained.
        const float angle = position * static_cast<float>(frequencies[i % frequencies.size()]);
        out[i] = static_cast<float>(wave(angle) * magnitude);
      }
    };
    const Shape table = shape(spec.max_positions, spec.rotary_dim / 2);
    return &params.add_constant(
        {.name = name, .shape = table, .arguments = angles_of(spec), .fill = fill, .value = {}});
  };
  cos_ = add("rope cos", [](double angle) { return std::cos(angle); });
  sin_ = add("rope sin", [](double angle) { return std::sin(angle); });
}

void Rope::rotate(Run& run, const Tensor& x, std::int64_t first, bool inverse) const {
  run.ops(RopeArgs{.x = x,
                   .positions = run.mb.positions,
                   .cos = cos_->value,
                   .sin = sin_->value,
                   .interleaved = interleaved_,
                   .inverse = inverse,
                   .first = first});
}

}  // namespace tera
