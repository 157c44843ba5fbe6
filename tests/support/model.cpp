#include "tests/support/model.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "tera/backend/cpu/workspace.h"
#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/ops/copy.h"
#include "tests/support/late_copy_ops.h"
#include "tests/support/transfer.h"

namespace tera::test {
namespace {

std::int64_t count_targets(const Batch& batch) {
  return std::count_if(batch.targets.begin(), batch.targets.end(), [](std::int32_t target) { return target >= 0; });
}

std::size_t add_up(const StageMemory& memory, std::string_view begin, bool host) {
  std::size_t bytes = 0;
  const auto see = [&](std::string_view name, std::span<const Arena> arenas) {
    for (const Arena& arena : arenas) bytes += name.starts_with(begin) ? arena.peak() : 0;
  };
  host ? memory.visit_host(see) : memory.visit(see);
  return bytes;
}

}  // namespace

Batch random_batch(std::int64_t batch, std::int64_t seq, std::int64_t vocab, std::uint64_t seed) {
  Batch out{.tokens = {}, .targets = {}, .batch = batch};
  for (std::int64_t i = 0; i < batch * seq; ++i) {
    const auto bits = philox({seed}, static_cast<std::uint64_t>(i), 0);
    out.tokens.push_back(static_cast<std::int32_t>(bits[0] % vocab));
    out.targets.push_back(bits[2] % 8 == 0 ? -1 : static_cast<std::int32_t>(bits[1] % vocab));
  }
  return out;
}

Model::Model(const ModelShape& shape, const Options& options)
    : shape_(shape),
      options_(options),
      ops_(options.late_copies ? std::make_unique<LateCopyOps>(options.threads, options.isa)
                               : std::make_unique<cpu::CpuOps>(options.threads, options.isa)),
      params_(options.compute, shape.freeze),
      blocks_(build_blocks(make_spec(shape, 7), params_)) {
  params_.lay_out();
  stage_ = {.chunks = {blocks_},
            .training = plan_alone(options_.schedule),
            .evaluation = plan_forward_alone(),
            .hidden = shape_.hidden,
            .dtype = options_.compute,
            .offload = offload_tags(shape.offload)};
  Arena weights = Arena::measuring(), constants = Arena::measuring(), grads = Arena::measuring(),
        inputs = Arena::measuring();
  bind(weights, constants, grads, inputs);
  const cpu::CpuWorkspaceRules rules(options_.threads);
  PlanOps plan_ops(rules);
  measured_ = StageMemory::measuring(stage_);
  Pipeline rehearsal(plan_ops, stage_, measured_);
  run(rehearsal);

  const auto real = [&](const Arena& measured) { return Arena(device_.allocate(measured.peak()), "test"); };
  Arena real_weights = real(weights), real_constants = real(constants), real_grads = real(grads),
        real_inputs = real(inputs);
  bind(real_weights, real_constants, real_grads, real_inputs);
  real_ = measured_.allocate_on(device_);
  ops_->bind_workspace(device_.allocate(plan_ops.workspace_peak()));
  pipeline_ = std::make_unique<Pipeline>(*ops_, stage_, real_);
  params_.initialize(*ops_, 11);
}

void Model::bind(Arena& weights, Arena& constants, Arena& grads, Arena& inputs) {
  const std::int64_t rows = options_.batch * options_.seq;
  params_.bind({weights, constants, &weights, &grads});
  batch_.clear();
  for (int i = 0; i < stage_.training.microbatches; ++i) {
    batch_.push_back({.tokens = inputs.take(shape(rows), DType::i32, "tokens"),
                      .targets = inputs.take(shape(rows), DType::i32, "targets"),
                      .positions = inputs.take(shape(rows), DType::i32, "positions"),
                      .rows = inputs.take(shape(rows), DType::i64, "rows"),
                      .batch = options_.batch,
                      .token_loss = inputs.take(shape(rows), DType::f32, "token_loss"),
                      .loss_scale = inputs.take(shape(1), DType::f32, "loss_scale")});
    if (options_.documents > 0)
      batch_.back().offsets = inputs.take(shape(options_.documents + 1), DType::i32, "offsets");
  }
  logits_ = inputs.take(shape(rows, shape_.padded_vocab), DType::f32, "logits");
}

void Model::run(Pipeline& pipeline) {
  pipeline.step(batch_);
  MicroBatch forward = batch_[0];
  forward.training = false;
  forward.logits = logits_;
  pipeline.forward({&forward, 1});
}

double Model::train(const std::vector<Batch>& batches) {
  ParamHooks nobody;
  return train(batches, nobody);
}

double Model::train(const std::vector<Batch>& batches, ParamHooks& hooks) {
  require(batches.size() == batch_.size(), "{} batches for {} microbatches", batches.size(), batch_.size());
  std::int64_t counted = 0;
  for (const auto& batch : batches) counted += count_targets(batch);
  for (std::size_t i = 0; i < batches.size(); ++i) load(i, batches[i], 1.0f / static_cast<float>(counted));
  for (Bucket& bucket : params_.buckets()) {
    (*ops_)(FillArgs{.out = bucket.grad, .value = std::numeric_limits<float>::quiet_NaN()});
    params_.empty_grads(*ops_, bucket);
  }
  pipeline_->step(batch_, hooks);
  for (Bucket& bucket : params_.buckets()) params_.complete_grads(*ops_, bucket);
  double sum = 0;
  for (const auto& mb : batch_)
    for (const float loss : download<float>(*ops_, mb.token_loss)) sum += loss;
  return sum / static_cast<double>(counted);
}

void Model::load(std::size_t microbatch, const Batch& batch, float scale) {
  const MicroBatch& mb = batch_[microbatch];
  const std::size_t rows = batch.tokens.size(), documents = batch.offsets.empty() ? 0 : batch.offsets.size() - 1;
  require(documents == static_cast<std::size_t>(options_.documents), "{} documents, not {}", documents,
          options_.documents);
  std::vector<std::int32_t> positions(rows);
  std::vector<std::int64_t> ids(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    positions[row] = static_cast<std::int32_t>(row % static_cast<std::size_t>(options_.seq));
    ids[row] = static_cast<std::int64_t>(microbatch * rows + row);
  }
  for (std::size_t i = 0; i < documents; ++i)
    std::iota(positions.begin() + batch.offsets[i], positions.begin() + batch.offsets[i + 1], 0);
  upload(*ops_, batch.tokens, mb.tokens);
  upload(*ops_, batch.targets, mb.targets);
  upload(*ops_, positions, mb.positions);
  upload(*ops_, ids, mb.rows);
  upload(*ops_, std::vector{scale}, mb.loss_scale);
  if (mb.offsets) upload(*ops_, batch.offsets, mb.offsets);
}

double Model::evaluate(const Batch& batch) {
  load(0, batch, 0);
  MicroBatch forward = batch_[0];
  forward.training = false;
  pipeline_->forward({&forward, 1});
  double sum = 0;
  for (const float loss : download<float>(*ops_, forward.token_loss)) sum += loss;
  return sum / static_cast<double>(count_targets(batch));
}

std::vector<float> Model::logits(const Batch& batch) {
  load(0, batch, 0);
  MicroBatch forward = batch_[0];
  forward.targets = {};
  forward.training = false;
  forward.logits = logits_;
  pipeline_->forward({&forward, 1});
  return download<float>(*ops_, logits_);
}

std::vector<float> Model::gradient(const std::string& name) {
  for (const Param* param : params_.by_name())
    for (const auto& part : param->spec.parts)
      if (part.name == name) return read_part(*ops_, param->grad, part);
  fail("no parameter has a part '{}'", name);
}

std::vector<float> Model::all_gradients() {
  std::vector<float> all;
  for (const auto& group : params_.groups()) {
    const auto part = download<float>(*ops_, group.grad);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::size_t Model::planned_bytes() const { return add_up(measured_, "", false); }
std::size_t Model::planned_host_bytes() const { return add_up(measured_, "", true); }
std::size_t Model::offload_buffer_bytes() const { return add_up(measured_, "offload buffers", false); }

bool Model::peaks_as_planned() const {
  std::vector<std::size_t> planned, taken;
  const auto collect = [](const StageMemory& memory, std::vector<std::size_t>& peaks) {
    const auto see = [&](std::string_view, std::span<const Arena> arenas) {
      for (const Arena& arena : arenas) peaks.push_back(arena.peak());
    };
    memory.visit(see);
    memory.visit_host(see);
  };
  collect(measured_, planned);
  collect(real_, taken);
  return planned == taken;
}

bool Model::stashes_are_empty() const {
  bool empty = true;
  const auto see = [&](std::string_view, std::span<const Arena> arenas) {
    for (const Arena& arena : arenas) empty = empty && arena.mark() == 0;
  };
  real_.visit(see);
  real_.visit_host(see);
  return empty;
}

}  // namespace tera::test
