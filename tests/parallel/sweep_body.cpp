#include "tests/parallel/sweep_body.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/ops/copy.h"
#include "tera/setup/load.h"
#include "tera/setup/resolve.h"
#include "tera/train/data_source.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

BatchOptions options_of_rank(const tera::Setup& setup, const DataSource& data, const Groups& groups) {
  BatchOptions options = batch_options(setup, data.tokenizer.get());
  options.data_rank = groups.dp.rank();
  options.data_ranks = groups.dp.size();
  return options;
}

class Feeder {
 public:
  Feeder(const SweepCase& one, const tera::Setup& setup, TrainingStep& step)
      : setup_(setup),
        step_(step),
        counted_targets_(one.counted_targets),
        data_(make_data_source(setup)),
        loader_(*data_.train, options_of_rank(setup, data_, step.layout().groups)),
        host_({.rows = setup.batch.micro_batch * setup.batch.seq_length,
               .mtp_depths = setup.model.mtp_layers,
               .packed = setup.batch.packs_documents}) {
    const Groups& groups = step.layout().groups;
    if (setup.parallel.dynamic_cp)
      dynamic_cp_loader_.emplace(dynamic_cp_options(setup, groups.dp.rank(), groups.cp.rank()));
  }

  // Loads what the next step reads; returns how many targets count.
  std::int64_t load_next(bool overflow) {
    microbatches_ = setup_.batch.microbatches_at(consumed_);
    const std::int64_t samples = setup_.batch.global_batch_at(consumed_);
    const std::int64_t counted =
        dynamic_cp_loader_ ? load_assigned(consumed_, samples) : load(consumed_, samples, overflow);
    consumed_ += samples;
    return counted;
  }
  std::int64_t load_largest() {
    microbatches_ = setup_.batch.num_microbatches;
    return load(0, setup_.batch.global_batch);
  }
  std::int64_t microbatches() const { return microbatches_; }
  const MtpTargetCounts& mtp_target_counts() const { return mtp_target_counts_; }
  // Bits of the degrees that microbatches had so far, on any replica; microbatches of one rank each count as none.
  std::uint64_t degrees() const { return degrees_; }

 private:
  std::array<float, max_mtp_layers> mtp_scales(const MtpTargetCounts& counted) const {
    std::array<float, max_mtp_layers> scales{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(setup_.model.mtp_layers); ++i)
      scales[i] =
          static_cast<float>(setup_.model.mtp_loss_factor) / static_cast<float>(setup_.model.mtp_layers * counted[i]);
    return scales;
  }

  std::int64_t load_assigned(std::int64_t consumed, std::int64_t samples) {
    const DynamicCpLoader::Step& assigned = dynamic_cp_loader_->step(loader_, consumed, samples);
    const DynamicCpScheduler& scheduler = assigned.scheduler();
    microbatches_ = scheduler.microbatches();
    mtp_target_counts_ = assigned.counts().mtp_targets;
    const auto scales = mtp_scales(mtp_target_counts_);
    for (std::int64_t i = 0; i < microbatches_; ++i) {
      for (int replica = 0; replica < setup_.parallel.dp; ++replica) degrees_ |= 1u << scheduler.degree(i, replica);
      step_.load(i, dynamic_cp_loader_->fill(loader_, assigned, i, host_.spans()).rows,
                 1.0f / static_cast<float>(assigned.counts().targets), 0,
                 std::span(scales).first(static_cast<std::size_t>(setup_.model.mtp_layers)));
    }
    return assigned.counts().targets;
  }

  std::int64_t load(std::int64_t consumed, std::int64_t samples, bool overflow = false) {
    BatchCounts counted = loader_.count(consumed, samples);
    if (counted_targets_ > 0) counted.targets = samples * counted_targets_;
    const auto depths = static_cast<std::size_t>(setup_.model.mtp_layers);
    const auto scales = mtp_scales(counted.mtp_targets);
    for (std::int64_t i = 0; i < microbatches_; ++i) {
      const BatchCounts counts = loader_.fill(consumed, i, host_.spans());
      if (counted_targets_ > 0) mask_targets();
      step_.load(i, host_.filled(counts), overflow && i == 0 ? 1e30f : 1.0f / static_cast<float>(counted.targets),
                 1.0f / static_cast<float>(microbatches_ * setup_.parallel.dp), std::span(scales).first(depths));
    }
    mtp_target_counts_ = counted.mtp_targets;
    return counted.targets;
  }

  void mask_targets() {
    const std::span<std::int32_t> targets = host_.spans().targets;
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (static_cast<std::int64_t>(i) % setup_.batch.seq_length >= counted_targets_) targets[i] = -1;
  }

  const tera::Setup& setup_;
  TrainingStep& step_;
  std::int64_t counted_targets_;
  DataSource data_;
  BatchLoader loader_;
  std::optional<DynamicCpLoader> dynamic_cp_loader_;
  std::uint64_t degrees_ = 0;
  BatchBuffers host_;
  std::int64_t consumed_ = 0, microbatches_ = 0;
  MtpTargetCounts mtp_target_counts_{};
};

// An element in the middle of this rank's shard of a gradient that is a matrix, and so no replica of another rank's.
void break_a_gradient(TrainingStep& step, Ops& ops) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const ParamStore& params = step.params();
  for (const Bucket& bucket : params.buckets()) {
    const std::int64_t own = bucket.begin + bucket.local_begin(), at = own + bucket.shard_size() / 2;
    for (const Param* param : bucket.params)
      if (param->spec.shape.rank == 2 && param->offset <= at && at < param->offset + count(param->spec.shape))
        return ops.from_host(std::as_bytes(std::span(&infinity, 1)), bucket.local_grad.rows(at - own, at - own + 1));
  }
  fail("no matrix is in the middle of what this rank keeps");
}

void spoil_gradients(TrainingStep& step, Ops& ops, float value) {
  const ParamStore& params = step.params();
  for (const Bucket& bucket : params.buckets())
    ops(FillArgs{.out = bucket.grad ? bucket.grad : bucket.local_grad, .value = value});
  for (const Tensor& buffer : params.grad_buffers()) ops(FillArgs{.out = buffer, .value = value});
}

bool peaks_as_planned(const TrainingStep& step) {
  bool same = true;
  const auto compare = [&](const MemoryItem& item, std::span<const Arena> arenas) {
    std::size_t largest = 0;
    for (const Arena& arena : arenas) largest = std::max(largest, arena.peak());
    // Where a step may choose, the plan is that of the largest choice.
    same = same && (step.layout().degrees.size() > 1 ? largest <= item.bytes : largest == item.bytes);
  };
  step.stage_memory().visit(
      [&](std::string_view name, std::span<const Arena> arenas) { compare(step.memory().item(name), arenas); });
  step.stage_memory().visit_host(
      [&](std::string_view name, std::span<const Arena> arenas) { compare(step.memory().host_item(name), arenas); });
  return same;
}

}  // namespace

std::string SweepCase::describe() const {
  std::string text = fmt::format("{} x{} {}", config, ranks, joined(overrides, " "));
  if (overflow.step >= 0)
    text += fmt::format(", overflow of {} on rank {} in step {}", overflow.in_loss ? "the loss" : "a gradient",
                        overflow.rank, overflow.step);
  if (!std::isnan(old_gradients)) text += fmt::format(", old gradients {}", old_gradients);
  if (counted_targets > 0) text += fmt::format(", {} targets of a sequence", counted_targets);
  return text;
}

tera::Setup sweep_setup(const SweepCase& one) {
  const LoadedConfig loaded = load_config(source_path("configs/tests/") + one.config + ".yaml", one.overrides);
  return resolve(loaded.config, Purpose::train, &loaded.origins, one.ranks);
}

// Element by element, by the definition of a part.
void Assembled::add(const TrainingStep& step, Ops& ops, What what) {
  const ParamStore& params = step.params();
  const std::lock_guard lock(mutex_);
  for (const Bucket& bucket : params.buckets()) {
    const std::int64_t shard = bucket.shard_size(), own = bucket.begin + bucket.local_begin();
    const std::vector<float> values = download(ops, what == What::gradients ? bucket.local_grad : bucket.local_master);
    for (const Param* param : bucket.params) {
      const std::int64_t width = count(param->spec.shape) / param->spec.shape[0];
      for (const Part& part : param->spec.parts) {
        auto& tensor = tensors_[part.name];
        auto& came = came_[part.name];
        tensor.resize(static_cast<std::size_t>(count(part.global)));
        came.resize(tensor.size());
        const std::int64_t columns = part.global.rank == 2 ? part.global[1] : 1;
        for (std::int64_t row = 0; row < part.local_shape()[0]; ++row) {
          for (std::int64_t column = 0; column < width; ++column) {
            const std::int64_t flat = param->offset + (part.local_row + row) * width + column;
            if (flat < own || flat >= own + shard) continue;
            const std::int64_t global_row = row + (part.split == 0 ? part.begin : 0);
            const std::int64_t global_column = column + (part.split == 1 ? part.begin : 0);
            const auto to = static_cast<std::size_t>(global_row * columns + global_column);
            const float value = values[static_cast<std::size_t>(flat - own)];
            contradicted_ = contradicted_ || (came[to] && tensor[to] != value);
            tensor[to] = value;
            came[to] = true;
          }
        }
      }
    }
  }
}

void Assembled::add_router_state(const TrainingStep& step, Ops& ops) {
  const std::lock_guard lock(mutex_);
  for (const Param* param : step.params().by_name()) {
    if (!param->spec.is_router_state()) continue;
    const std::vector<float> values = download(ops, param->value);
    const auto [tensor, fresh] = tensors_.try_emplace(param->spec.name, values);
    contradicted_ = contradicted_ || tensor->second != values;
    came_[param->spec.name].assign(values.size(), true);
  }
}

bool Assembled::complete() const {
  for (const auto& [name, came] : came_)
    if (std::find(came.begin(), came.end(), false) != came.end()) return false;
  return !contradicted_ && !tensors_.empty();
}

bool Assembled::is_part_of(const Assembled& reference) const {
  for (const auto& [name, came] : came_) {
    const auto found = reference.tensors_.find(name);
    if (found == reference.tensors_.end() || found->second.size() != came.size()) return false;
    for (std::size_t i = 0; i < came.size(); ++i)
      if (came[i] && tensors_.at(name)[i] != found->second[i]) return false;
  }
  return !contradicted_ && !came_.empty();
}

double Assembled::worst_difference(const std::string& name, const std::vector<float>& there) const {
  double worst = 0;
  const auto found = came_.find(name);
  for (std::size_t i = 0; found != came_.end() && i < there.size(); ++i)
    if (found->second[i])
      worst = std::max(worst, std::abs(static_cast<double>(tensors_.at(name)[i]) - static_cast<double>(there[i])));
  return worst;
}

void run_rank(const SweepCase& one, RankHandle& rank_handle, int steps, SweepResult& result) {
  static std::mutex mutex;
  const tera::Setup setup = sweep_setup(one);
  BackendOptions options = backend_options(setup, 0);
  options.small_calls_too = true;
  Backend backend = make_backend(setup.config.dist, options);
  const auto world = rank_handle.join(*backend.ops);
  TrainingStep step(setup, rank_handle.rank());
  step.bind(backend, *world);
  Feeder feeder(one, setup, step);

  const bool first_rank = rank_handle.rank() == 0;
  const auto count_from_here = [&] {  // allocations of all ranks, between two barriers
    world->barrier();
    if (first_rank && result.start_counting) result.start_counting();
    world->barrier();
  };
  const auto count_up_to_here = [&] {
    world->barrier();
    if (first_rank && result.stop_counting) result.allocations += result.stop_counting();
    world->barrier();
  };
  count_from_here();
  const std::int64_t counted = feeder.load_largest();
  const double initial = step.evaluate().loss_sum / static_cast<double>(counted);
  if (first_rank) result.initial_loss = initial;
  int skipped = 0;
  StepReading read;
  for (int i = 0; i < steps; ++i) {
    const bool overflow = i == one.overflow.step && rank_handle.rank() == one.overflow.rank;
    const std::int64_t targets = feeder.load_next(overflow && one.overflow.in_loss);
    spoil_gradients(step, *backend.ops, one.old_gradients);
    step.forward_backward(feeder.microbatches());
    if (overflow && !one.overflow.in_loss) break_a_gradient(step, *backend.ops);
    if (i == 0) {
      count_up_to_here();
      result.gradients.add(step, *backend.ops, Assembled::What::gradients);
      count_from_here();
    }
    step.update(setup.config.optimizer.lr);
    read = step.result(step.read_back());
    const ScaleReading scaling = LossScaling::state_of(read);
    skipped += scaling.skipped != 0 ? 1 : 0;
    if (!first_rank) continue;
    result.loss.push_back(read.number("loss_sum") / static_cast<double>(targets));
    result.norm.push_back(read.number("grad_norm"));
    result.scale.push_back(scaling.scale);
    for (std::size_t depth = 0; depth < static_cast<std::size_t>(setup.model.mtp_layers); ++depth)
      result.mtp_loss.push_back(read.number_at("mtp_loss_sums", depth) /
                                static_cast<double>(feeder.mtp_target_counts()[depth]));
    const std::span<const double> aux_losses = read.values<double>("aux_losses");
    result.aux_losses.insert(result.aux_losses.end(), aux_losses.begin(), aux_losses.end());
  }
  count_up_to_here();
  result.weights.add(step, *backend.ops, Assembled::What::weights);
  result.router_state.add_router_state(step, *backend.ops);
  if (first_rank) result.degrees = feeder.degrees();
  const std::span<const std::int32_t> choices = read.values<std::int32_t>("expert_counts");
  if (first_rank) result.choices.assign(choices.begin(), choices.end());
  const std::lock_guard lock(mutex);
  result.skipped += skipped;
  result.peaks_as_planned = result.peaks_as_planned && peaks_as_planned(step);
  result.max_bytes = std::max(result.max_bytes, step.memory().total());
}

void run_on_threads(const SweepCase& one, int steps, SweepResult& result) {
  result.loss.reserve(static_cast<std::size_t>(steps));
  result.norm.reserve(static_cast<std::size_t>(steps));
  result.scale.reserve(static_cast<std::size_t>(steps));
  result.mtp_loss.reserve(static_cast<std::size_t>(steps) * max_mtp_layers);
  result.aux_losses.reserve(static_cast<std::size_t>(steps) * static_cast<std::size_t>(AuxLoss::count));
  run_threads(one.ranks, {.timeout = std::chrono::seconds(60)},
              [&](RankHandle& rank_handle) { run_rank(one, rank_handle, steps, result); });
}

}  // namespace tera::test
