#pragma once
// How the rows of a whole step were spread over experts, and what follows from it: biases that make the next step
// choose more evenly, and the shares of the choices that a loss over the global batch looks at. Counts are integers
// summed over all microbatches and ranks, so both are the same bits in every layout.
//
//   routers, in B (nn/router.h)  --add-->  counts, losses of this rank  --sum over the world-->  bias, shares

#include <vector>

#include "tera/comm/comm.h"
#include "tera/nn/params.h"

namespace tera {

class Ops;

class ExpertLoad {
 public:
  struct Options {
    std::int64_t layers = 0;  // of the whole model, with experts
    std::int64_t experts = 0;
    float bias_rate = 0;
  };
  ExpertLoad(const Options& options, const ParamStore& params) : options_(options), params_(params) {}

  void bind(Arena& arena);

  const Tensor& counts() const { return counts_; }  // i32 [layers,E]
  const Tensor& losses() const { return losses_; }  // f32 [AuxLoss::count]: of this rank

  void clear(Ops& ops) const;  // before the first microbatch
  // After the last one, counts of all ranks.
  void sum(Ops& ops, Comm& world) const;
  // After the optimizer, which says whether the step was skipped.
  void update(Ops& ops, const Tensor& grad_factor) const;

 private:
  Options options_;
  const ParamStore& params_;
  std::vector<const Param*> moved_;
  Tensor counts_, losses_;
};

}  // namespace tera
