#pragma once
// Expert load of a step, and the router state that follows from it: biases for auxiliary-loss-free load balancing, and
// the fractions of choices for the auxiliary loss over the global batch. Counts are integers summed over all
// microbatches and ranks, so both are the same bits in every layout.
//
//   routers, in B (nn/ffn/router.h)  --add-->  counts, losses of this rank  --all-reduce-->  bias, shares

#include <vector>

#include "tera/comm/comm.h"
#include "tera/nn/params.h"

namespace tera {

class Ops;

class ExpertLoad {
 public:
  struct Options {
    std::int64_t layers = 0;  // layers with experts in the global model
    std::int64_t experts = 0;
    float bias_rate = 0;
  };
  ExpertLoad(const Options& options, const ParamStore& params) : options_(options), params_(params) {}

  void bind(Arena& arena);

  const Tensor& counts() const { return counts_; }  // i32 [layers,E]
  const Tensor& losses() const { return losses_; }  // f32 [AuxLoss::count]: of this rank

  void clear(Ops& ops) const;  // before the first microbatch
  // After the last microbatch: sums counts over all ranks.
  void sum(Ops& ops, Comm& world) const;
  // After the optimizer, whose grad_factor says whether the step was skipped.
  void update(Ops& ops, const Tensor& grad_factor) const;

 private:
  Options options_;
  const ParamStore& params_;
  std::vector<const Param*> moved_;
  Tensor counts_, losses_;
};

}  // namespace tera
