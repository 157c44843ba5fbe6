#include "tera/train/step/step_engine.h"

namespace tera {
namespace {

DataParallel make_data_parallel(Ops& ops, const StepEngine::Parts& parts) {
  const ParallelShape& parallel = parts.setup.parallel;
  DataParallel::Options options{.overlap_grad_reduce = parallel.overlap_grad_reduce,
                                .overlap_param_gather = parallel.overlap_param_gather};
  for (const auto& chunk : parts.chunks)
    for (const auto& block : chunk) options.grads_in_f.push_back(block->makes_gradients_in_f());
  return {parts.params, parts.layout.groups, ops, std::move(options)};
}

}  // namespace

StepEngine::StepEngine(Ops& ops, const Parts& parts, StageMemory& memory)
    : ops_(ops), parts_(parts), replicas_(make_data_parallel(ops, parts)), pipeline_(ops, parts.stage, memory) {}

void StepEngine::forward_backward(std::int64_t microbatches) {
  replicas_.training(true);
  replicas_.begin_gradients();
  parts_.features.board().vetoes.clear(ops_);
  parts_.features.each([&](StepFeature& feature) { feature.begin_step(ops_); });
  pipeline_.step(parts_.inputs.training(microbatches), replicas_);
  replicas_.finish_gradients();
  parts_.features.each([&](StepFeature& feature) { feature.after_backward(run_of(microbatches)); });
}

void StepEngine::update() {
  parts_.features.board().vetoes.combine(ops_, parts_.layout.groups.world);
  parts_.optimizer.step(ops_);
  parts_.features.each([&](StepFeature& feature) { feature.after_update(ops_, parts_.optimizer.grad_factor()); });
  replicas_.all_gather_params();
}

void StepEngine::evaluate() {
  const std::span<const MicroBatch> batches = parts_.inputs.evaluation();
  replicas_.training(false);
  pipeline_.forward(batches, replicas_);
  parts_.features.each([&](StepFeature& feature) { feature.after_evaluation(run_of(std::ssize(batches))); });
  parts_.features.board().scalars.combine(ops_, parts_.layout.groups.world, StepScalars::When::evaluation);
}

}  // namespace tera
