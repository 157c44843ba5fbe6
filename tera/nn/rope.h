#pragma once
// Rotary position embedding (RoPE): tables of angles, and the leaf that rotates q and k by them.

#include "tera/config/sections/model.h"
#include "tera/nn/params.h"
#include "tera/nn/run.h"

namespace tera {

struct RopeSpec {
  std::int64_t max_positions = 0;
  std::int64_t rotary_dim = 0;  // channels that are rotated, even
  double base = 10000;
  bool interleaved = false;
  RopeScaling scaling;
};

// Frequency of each of the rotary_dim/2 pairs, scaling applied.
std::vector<double> rope_frequencies(const RopeSpec& spec);
// YaRN: the factor by which queries, and keys, grow with the context; attention scores grow by its square.
double yarn_growth(const RopeScaling& scaling, double mscale);
// The factor of cos and sin (attention_factor); 1 unless yarn.
double rope_magnitude(const RopeSpec& spec);

class Rope {
 public:
  Rope(ParamStore& params, const RopeSpec& spec);
  // x [T,N,D] in place: of each head the channels from `first` on.
  void forward(Run& run, const Tensor& x, std::int64_t first = 0) const { rotate(run, x, first, false); }
  void backward(Run& run, const Tensor& dx, std::int64_t first = 0) const { rotate(run, dx, first, true); }

 private:
  void rotate(Run& run, const Tensor& x, std::int64_t first, bool inverse) const;

  Constant *cos_, *sin_;  // f32 [P,R/2]
  bool interleaved_;
};

}  // namespace tera
