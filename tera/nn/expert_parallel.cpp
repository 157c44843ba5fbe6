#include "tera/nn/expert_parallel.h"

#include "tera/base/error.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

ExpertParallel::Range ExpertParallel::local_experts(std::int64_t experts) const {
  const std::int64_t ranks = ep ? ep->size() : 1, rank = ep ? ep->rank() : 0;
  require(experts % ranks == 0, "{} experts over {} ranks", experts, ranks);
  return {experts / ranks * rank, experts / ranks * (rank + 1)};
}

Part ExpertParallel::piece(Part part, int split) const {
  return TensorParallel{.group = etp}.piece(std::move(part), split);
}

Part ExpertParallel::replicated(Part part) const { return TensorParallel{.group = etp}.replicated(std::move(part)); }

std::vector<Part> ExpertParallel::parts(std::int64_t experts, PartsOfExpert parts_of_expert) const {
  std::vector<Part> all;
  std::int64_t row = 0;
  const Range here = local_experts(experts);
  for (std::int64_t expert = here.begin; expert < here.end; ++expert) {
    for (Part& part : parts_of_expert(expert)) {
      part.local_row = row;
      row += part.local_shape()[0];
      all.push_back(std::move(part));
    }
  }
  return all;
}

}  // namespace tera
