#include "tera/optim/expert_load.h"

#include "tera/nn/run.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/route.h"

namespace tera {

void ExpertLoad::bind(Arena& arena) {
  counts_ = arena.take(shape(options_.layers, options_.experts), DType::i32, "choices of experts");
  losses_ = arena.take(shape(static_cast<int>(AuxLoss::count)), DType::f32, "auxiliary losses");
  moved_.clear();
  for (const Param* param : params_.by_name())
    if (param->spec.is_router_state() && !(param->spec.frozen && param->spec.counts == ParamSpec::Counts::bias))
      moved_.push_back(param);
}

void ExpertLoad::clear(Ops& ops) const {
  ops(FillArgs{.out = counts_, .value = 0});
  ops(FillArgs{.out = losses_, .value = 0});
}

void ExpertLoad::sum(Ops& ops, Comm& world) const { ops.wait(world.all_reduce(counts_, Reduce::sum, ops.record())); }

void ExpertLoad::update(Ops& ops, const Tensor& grad_factor) const {
  for (const Param* param : moved_) {
    const std::int64_t layer = param->spec.router_layer;
    const bool bias = param->spec.counts == ParamSpec::Counts::bias;
    ops(ExpertBiasArgs{.counts = counts_.rows(layer, layer + 1).view(shape(options_.experts)),
                       .bias = bias ? param->value : Tensor{},
                       .rate = options_.bias_rate,
                       .shares = bias ? Tensor{} : param->value,
                       .grad_factor = grad_factor});
  }
}

}  // namespace tera
