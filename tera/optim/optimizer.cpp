#include "tera/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "tera/ops/ops.h"
#include "tera/optim/loss_scale.h"

namespace tera {

namespace {

std::string key_of(const Param& param, std::size_t part) { return param.spec.name + "#" + std::to_string(part); }

// Where rows of a part begin and end in the flat numbering; rows behind the last part are its padding.
std::pair<std::int64_t, std::int64_t> flat_range(const Param& param, std::size_t part) {
  const ParamSpec& spec = param.spec;
  const std::int64_t width = count(spec.shape) / spec.shape[0];
  const bool last = part + 1 == spec.parts.size();
  const std::int64_t end = last ? spec.shape[0] : spec.parts[part + 1].local_row;
  return {param.offset + spec.parts[part].local_row * width, param.offset + end * width};
}

}  // namespace

std::vector<std::string> norm_keys(const ParamStore& params) {
  std::vector<std::string> keys;
  for (const Param* param : params.by_name())
    for (std::size_t i = 0; param->spec.trainable && i < param->spec.parts.size(); ++i)
      keys.push_back(key_of(*param, i));
  std::sort(keys.begin(), keys.end());
  return keys;
}

Optimizer::Optimizer(const OptimizerConfig& config, ParamStore& params) : config_(config), params_(params) {}

void Optimizer::bind(Arena& state) {
  const std::int64_t own = params_.share_elements();
  find_pieces();
  if (config_.optimizer == OptimizerKind::adam) {
    m_ = state.take(shape(own), DType::f32, "adam first moment");
    v_ = state.take(shape(own), DType::f32, "adam second moment");
  } else if (config_.sgd_momentum > 0) {
    m_ = state.take(shape(own), DType::f32, "sgd momentum");
  }
  scalars_ = state.take(shape(static_cast<int>(StepScalar::count)), DType::f32, "step scalars");
  if (scaler_) rates_ = state.take(shape(2), DType::f32, "learning rates");
  sums_ = state.take(shape(slots_), DType::f64, "sums of squares");
  norm_ = state.take(shape(1), DType::f32, "gradient norm");
}

std::vector<Optimizer::Moment> Optimizer::moments() const {
  if (config_.optimizer == OptimizerKind::adam) return {{"exp_avg", m_}, {"exp_avg_sq", v_}};
  if (config_.sgd_momentum > 0) return {{"momentum_buffer", m_}};
  return {};
}

void Optimizer::find_pieces() {
  const std::vector<std::string> keys = scope_.parts_of_model.empty() ? norm_keys(params_) : scope_.parts_of_model;
  slots_ = static_cast<std::int64_t>(keys.size());
  pieces_.clear();
  const FlatRules& rules = params_.rules();
  for (const Param* param : params_.by_name()) {
    if (!param->spec.trainable || param->spec.counted_elsewhere || !scope_.counts) continue;
    const Bucket& bucket = params_.buckets()[static_cast<std::size_t>(param->bucket)];
    const std::int64_t share = bucket.elements() / rules.shares, own = bucket.begin + rules.share * share;
    for (std::size_t i = 0; i < param->spec.parts.size(); ++i) {
      if (param->spec.parts[i].replica != 0) continue;
      auto [begin, end] = flat_range(*param, i);
      begin = std::max(begin, own);
      end = std::min(end, own + share);
      if (begin >= end) continue;
      const auto slot = std::lower_bound(keys.begin(), keys.end(), key_of(*param, i)) - keys.begin();
      pieces_.push_back({bucket.own_grad.rows(begin - own, end - own), slot});
    }
  }
}

void Optimizer::step(Ops& ops) {
  RangeScope range(ops, "optimizer");
  clip(ops);
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
  const std::array<float, 3> values{static_cast<float>(lr), correction(config_.adam_beta1),
                                    correction(config_.adam_beta2)};
  ops.from_host(std::as_bytes(std::span(values)), scalars_.rows(0, values.size()));
}

void Optimizer::write_rates(Ops& ops, const LearningRates& rates) {
  const std::array<float, 2> values{static_cast<float>(rates.after_update), static_cast<float>(rates.after_skip)};
  ops.from_host(std::as_bytes(std::span(values)), rates_);
}

void Optimizer::count_step(Ops& ops) {
  ops.count_step({.state = scaler_->state(),
                  .scalars = scalars_,
                  .rates = rates_,
                  .beta1 = config_.adam_beta1,
                  .beta2 = config_.adam_beta2,
                  .rule = scaler_->rule()});
}

// A sum per part, added in the order of names: the norm depends neither on how parameters are laid out nor on when
// their gradients came.
void Optimizer::clip(Ops& ops) {
  ops.fill({.out = sums_, .value = 0});
  for (const Piece& piece : pieces_) ops.sum_squares({.x = piece.grad, .out = sums_.rows(piece.slot, piece.slot + 1)});
  if (scope_.world) ops.wait(scope_.world->all_reduce(sums_, Reduce::sum, ops.record()));
  const auto factor = static_cast<std::int64_t>(StepScalar::grad_factor);
  ops.clip({.sums = sums_,
            .norm = norm_,
            .factor = scalars_.rows(factor, factor + 1),
            .state = scaler_ ? scaler_->state() : Tensor{},
            .max_norm = static_cast<float>(config_.clip_grad)});
}

void Optimizer::update(Ops& ops, const ParamStore::Group& group) {
  const float decay = group.decay ? static_cast<float>(config_.weight_decay) : 0;
  const Tensor m = m_ ? m_.rows(group.begin, group.end) : Tensor{};
  if (config_.optimizer == OptimizerKind::adam) {
    ops.adam({.weight = group.master,
              .grad = group.grad,
              .m = m,
              .v = v_.rows(group.begin, group.end),
              .copy = group.copy,
              .scalars = scalars_,
              .beta1 = config_.adam_beta1,
              .beta2 = config_.adam_beta2,
              .eps = static_cast<float>(config_.adam_eps),
              .weight_decay = decay,
              .clear_grad = true});
  } else {
    ops.sgd({.weight = group.master,
             .grad = group.grad,
             .momentum_buffer = m,
             .copy = group.copy,
             .scalars = scalars_,
             .momentum = static_cast<float>(config_.sgd_momentum),
             .weight_decay = decay,
             .clear_grad = true});
  }
}

}  // namespace tera
