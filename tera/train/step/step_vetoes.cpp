#include "tera/train/step/step_vetoes.h"

#include "tera/ops/copy.h"

namespace tera {

void StepVetoes::bind(Arena& arena) {
  if (any()) flags_ = arena.take(shape(count_), DType::f32, "vetoes");
}

std::vector<Tensor> StepVetoes::flags() const {
  std::vector<Tensor> all;
  for (std::int64_t id = 0; id < count_; ++id) all.push_back(flag(id));
  return all;
}

void StepVetoes::clear(Ops& ops) const {
  if (any()) ops(FillArgs{.out = flags_, .value = 0});
}

void StepVetoes::combine(Ops& ops, Comm& world) const {
  if (any()) ops.wait(world.all_reduce(flags_, Reduce::sum, ops.record()));
}

}  // namespace tera
