#include "tera/train/expert_report.h"

#include <algorithm>
#include <numeric>

namespace tera {
namespace {

AuxLoss kind_of(LoadBalancing kind) {
  if (kind == LoadBalancing::seq_aux_loss) return AuxLoss::sequence_balance;
  return kind == LoadBalancing::global_aux_loss ? AuxLoss::global_balance : AuxLoss::balance;
}

std::optional<double> ExpertMetrics::*metric_of(AuxLoss kind) {
  switch (kind) {
    case AuxLoss::sequence_balance: return &ExpertMetrics::seq_load_balancing_loss;
    case AuxLoss::global_balance: return &ExpertMetrics::global_load_balancing_loss;
    case AuxLoss::z: return &ExpertMetrics::z_loss;
    default: return &ExpertMetrics::load_balancing_loss;
  }
}

}  // namespace

ExpertReport::ExpertReport(const Setup& setup)
    : layers_(static_cast<std::size_t>(setup.model.expert_layers())),
      experts_(static_cast<std::size_t>(setup.model.moe->experts)),
      micro_batch_(setup.batch.micro_batch),
      rows_(setup.batch.micro_batch * setup.batch.seq_length),
      log_load_(setup.config.logger.log_expert_load),
      max_over_mean_(layers_),
      unused_(layers_) {
  const auto add = [&](AuxLoss kind, double divisor) { losses_.push_back({kind, divisor, metric_of(kind)}); };
  for (const BalanceLoss& loss : setup.model.moe->losses) add(kind_of(loss.kind), loss.coefficient);
  if (setup.model.moe->z_loss > 0) add(AuxLoss::z, static_cast<double>(rows_));
}

JsonlSink::Capacity ExpertReport::capacity(const Setup& setup) {
  if (!setup.model.moe) return {};
  const auto layers = static_cast<std::size_t>(setup.model.expert_layers());
  return {
      .layers = layers,
      .loads = setup.config.logger.log_expert_load ? layers * static_cast<std::size_t>(setup.model.moe->experts) : 0};
}

ExpertMetrics ExpertReport::report(const TrainingStep::Result& result, std::int64_t samples) {
  ExpertMetrics metrics{.load_max_over_mean = max_over_mean_, .unused_experts = unused_, .experts = experts_};
  const auto terms = static_cast<double>(layers_) * static_cast<double>(samples / micro_batch_);
  for (const Loss& loss : losses_)
    metrics.*loss.to = result.aux_losses[static_cast<std::size_t>(loss.kind)] / (loss.divisor * terms);
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    const auto load = result.expert_counts.subspan(layer * experts_, experts_);
    const auto all = static_cast<double>(std::accumulate(load.begin(), load.end(), std::int64_t{0}));
    const auto of_experts = static_cast<double>(experts_);
    max_over_mean_[layer] = all > 0 ? *std::max_element(load.begin(), load.end()) * of_experts / all : 0;
    unused_[layer] = static_cast<double>(std::count(load.begin(), load.end(), 0)) / of_experts;
  }
  if (log_load_) metrics.load = result.expert_counts;
  return metrics;
}

}  // namespace tera
