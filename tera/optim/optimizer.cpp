#include "tera/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "tera/base/error.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/ops.h"
#include "tera/ops/optim.h"
#include "tera/optim/loss_scale.h"

namespace tera {

namespace {

// A range with a sum of squares of its own: a part, or neighbours in an expert parameter, of which there are hundreds.
struct NormRange {
  std::string key;
  std::int64_t begin, end;  // in the flat numbering; rows after the last part are its padding
  bool here;                // counted on this rank; false: another rank counts it
};

std::vector<NormRange> norm_ranges(const Param& param) {
  const ParamSpec& spec = param.spec;
  const std::int64_t width = count(spec.shape) / spec.shape[0];
  std::vector<NormRange> ranges;
  for (std::size_t i = 0; i < spec.parts.size(); ++i) {
    const bool last = i + 1 == spec.parts.size();
    const std::int64_t end = param.offset + (last ? spec.shape[0] : spec.parts[i + 1].local_row) * width;
    if (spec.expert && i > 0 && spec.parts[i].replicas == spec.parts[i - 1].replicas)
      ranges.back().end = end;
    else
      ranges.push_back({spec.name + "#" + std::to_string(i), param.offset + spec.parts[i].local_row * width, end,
                        spec.parts[i].replica == 0});
  }
  return ranges;
}

}  // namespace

std::vector<std::string> norm_keys(const ParamStore& params) {
  std::vector<std::string> keys;
  for (const Param* param : params.by_name()) {
    if (!param->spec.trainable) continue;
    for (NormRange& range : norm_ranges(*param)) keys.push_back(std::move(range.key));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

Optimizer::Optimizer(const OptimizerConfig& config, ParamStore& params)
    : config_(config), params_(params), rule_(make_update_rule(config)) {}

void Optimizer::bind(Arena& state) {
  const std::vector<RuleState> kept = rule_->state();
  require(kept.size() <= states_.size(), "a rule keeps {} values of an element", kept.size());
  find_pieces();
  for (std::size_t i = 0; i < kept.size(); ++i)
    states_[i] = state.take(shape(params_.shard_elements()), kept[i].dtype, kept[i].tag);
  scalars_ = state.take(shape(static_cast<int>(StepScalar::count)), DType::f32, "step scalars");
  if (scaler_) rates_ = state.take(shape(2), DType::f32, "learning rates");
  sums_ = state.take(shape(slots_), DType::f64, "sums of squares");
  norm_ = state.take(shape(1), DType::f32, "gradient norm");
  factor_sum_.assign(1, grad_factor());
  factor_sum_.insert(factor_sum_.end(), vetoes_.begin(), vetoes_.end());
}

std::vector<Optimizer::Moment> Optimizer::moments() const {
  std::vector<Moment> moments;
  for (const RuleState& kept : rule_->state())
    moments.push_back({std::string(kept.name), kept.dtype, states_[moments.size()]});
  return moments;
}

void Optimizer::find_pieces() {
  const std::vector<std::string> keys = scope_.parts_of_model.empty() ? norm_keys(params_) : scope_.parts_of_model;
  slots_ = static_cast<std::int64_t>(keys.size());
  pieces_.clear();
  for (const Param* param : params_.by_name()) {
    const ParamSpec& spec = param->spec;
    if (!spec.trainable || spec.norm_counted_elsewhere || !scope_.counts.of(spec.expert)) continue;
    const Bucket& bucket = params_.buckets()[static_cast<std::size_t>(param->bucket)];
    const std::int64_t shard = bucket.begin + bucket.local_begin();
    for (const NormRange& range : norm_ranges(*param)) {
      const std::int64_t begin = std::max(range.begin, shard), end = std::min(range.end, shard + bucket.shard_size());
      if (!range.here || begin >= end) continue;
      const auto slot = std::lower_bound(keys.begin(), keys.end(), range.key) - keys.begin();
      pieces_.push_back({bucket.local_grad.rows(begin - shard, end - shard), slot});
    }
  }
}

void Optimizer::step(Ops& ops) {
  RangeScope range(ops, "optimizer");
  clip(ops);
  if (!vetoes_.empty()) apply_vetoes(ops);
  if (scaler_) count_step(ops);
  for (const auto& group : params_.groups()) update(ops, group);
}

void Optimizer::prepare(Ops& ops, const LearningRates& rates, std::int64_t number) {
  RangeScope range(ops, "optimizer");
  scaler_ ? write_rates(ops, rates) : write_scalars(ops, rates.after_update, number);
}

void Optimizer::write_scalars(Ops& ops, double lr, std::int64_t number) {
  const auto correction = [&](double beta) {
    return static_cast<float>(1 - std::pow(beta, static_cast<double>(number)));
  };
  const auto [first, second] = rule_->decays();
  const std::array<float, 3> values{static_cast<float>(lr), correction(first), correction(second)};
  ops.from_host(std::as_bytes(std::span(values)), scalars_.rows(0, values.size()));
}

void Optimizer::write_rates(Ops& ops, const LearningRates& rates) {
  const std::array<float, 2> values{static_cast<float>(rates.after_update), static_cast<float>(rates.after_skip)};
  ops.from_host(std::as_bytes(std::span(values)), rates_);
}

void Optimizer::count_step(Ops& ops) {
  ops(CountStepArgs{.state = scaler_->state(),
                    .scalars = scalars_,
                    .rates = rates_,
                    .beta1 = rule_->decays().first,
                    .beta2 = rule_->decays().second,
                    .rule = scaler_->rule()});
}

Tensor Optimizer::grad_factor() const {
  const auto factor = static_cast<std::int64_t>(StepScalar::grad_factor);
  return scalars_.rows(factor, factor + 1);
}

// Clips by the global norm. A sum of squares per part, added in the order of names: the norm depends neither on the
// layout of parameters nor on when their gradients came.
void Optimizer::clip(Ops& ops) {
  ops(FillArgs{.out = sums_, .value = 0});
  for (const Piece& piece : pieces_)
    ops(SumSquaresArgs{.x = piece.grad, .out = sums_.rows(piece.slot, piece.slot + 1)});
  if (scope_.world) ops.wait(scope_.world->all_reduce(sums_, Reduce::sum, ops.record()));
  ops(ClipArgs{.sums = sums_,
               .norm = norm_,
               .factor = grad_factor(),
               .state = scaler_ ? scaler_->state() : Tensor{},
               .max_norm = static_cast<float>(config_.clip_grad)});
}

// A finite flag is 0, and leaves the factor as it is, to the bit; any other makes it not finite, which skips the
// update.
void Optimizer::apply_vetoes(Ops& ops) {
  ops(CombineArgs{.sources = factor_sum_, .out = grad_factor(), .how = Reduce::sum});
}

void Optimizer::update(Ops& ops, const ParamStore::Group& group) {
  std::array<Tensor, UpdateRule::max_states> states;
  std::size_t kept = 0;
  for (; kept < states_.size() && states_[kept]; ++kept) states[kept] = states_[kept].rows(group.begin, group.end);
  rule_->update(ops, {.weight = group.master,
                      .grad = group.grad,
                      .copy = group.copy,
                      .state = std::span(states).first(kept),
                      .scalars = scalars_,
                      .weight_decay = group.decay ? static_cast<float>(config_.weight_decay) : 0,
                      .clear_grad = clears_});
}

}  // namespace tera
