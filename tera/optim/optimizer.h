#pragma once
// Clipping and the update rule, over the flat ranges of the parameter store. Everything that changes from step to step
// stays in device memory; the host only writes the learning rate and reads the norm for the log.

#include "tera/config/optimizer.h"
#include "tera/nn/params.h"

namespace tera {

class Ops;

class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, ParamStore& params);

  // Memory for moments and scalars; once with a measuring arena, once with a real one.
  void bind(Arena& state);

  // Clips, updates the weights and clears the gradients. update counts from 1.
  void step(Ops& ops, double lr, std::int64_t update);

  const Tensor& grad_norm() const { return norm_; }  // f32 [1], before clipping

 private:
  void write_scalars(Ops& ops, double lr, std::int64_t update);
  void clip(Ops& ops);
  void update(Ops& ops, const ParamStore::Group& group);

  OptimizerConfig config_;
  ParamStore& params_;
  Tensor m_, v_;    // f32 [trained elements]; sgd has only m_, its momentum
  Tensor scalars_;  // f32 [StepScalar::count]
  Tensor sums_;     // f64 [trained parameters], in name order
  Tensor norm_;     // f32 [1]
};

}  // namespace tera
