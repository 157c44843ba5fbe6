#include "tera/train/step/router_state.h"

#include <algorithm>
#include <numeric>

#include "tera/ops/loss.h"

namespace tera {
namespace {

constexpr auto aux_losses = static_cast<std::int64_t>(AuxLoss::count);

struct NamedLoss {
  std::string_view name;
  AuxLoss kind;
};

NamedLoss named_loss(LoadBalancing kind) {
  if (kind == LoadBalancing::seq_aux_loss) return {"seq_load_balancing_loss", AuxLoss::sequence_balance};
  if (kind == LoadBalancing::global_aux_loss) return {"global_load_balancing_loss", AuxLoss::global_balance};
  return {"load_balancing_loss", AuxLoss::balance};
}

}  // namespace

RouterState::RouterState(const Setup& setup, const ParamStore& params)
    : StepFeature(FeatureOrder::router_state),
      load_({.layers = setup.model.expert_layers(),
             .experts = setup.model.moe->experts,
             .bias_rate = setup.model.moe->router.bias_rate},
            params),
      layers_(static_cast<std::size_t>(setup.model.expert_layers())),
      experts_(static_cast<std::size_t>(setup.model.moe->experts)),
      micro_batch_(setup.batch.micro_batch),
      log_load_(setup.config.logger.log_expert_load),
      max_over_mean_(layers_),
      unused_(layers_) {
  const auto add = [&](const NamedLoss& loss, double divisor) { losses_.push_back({loss.name, loss.kind, divisor}); };
  for (const BalanceLoss& loss : setup.model.moe->losses) add(named_loss(loss.kind), loss.coefficient);
  const auto rows = static_cast<double>(setup.batch.micro_batch * setup.batch.seq_length);
  if (setup.model.moe->z_loss > 0) add({"z_loss", AuxLoss::z}, rows);
  std::ranges::stable_sort(losses_, {}, &Loss::kind);  // the order of the log
}

void RouterState::describe(StepBoard& board) {
  board_ = &board;
  kind_ = board.weights.add(1);
  sums_ = board.scalars.add({.name = "aux_losses", .count = aux_losses});
  counts_ = board.scalars.add(
      {.name = "expert_counts", .combine = Combine::same, .count = static_cast<std::int64_t>(layers_ * experts_)});
}

void RouterState::bind(const FeatureArenas& arenas) {
  load_.bind(arenas.inputs);
  board_->scalars.attach(counts_, load_.counts());
}

void RouterState::attach(std::int64_t index, MicroBatch& batch) {
  batch.aux_scale = board_->weights.weight(kind_, index);
  batch.expert_counts = load_.counts();
  batch.aux_losses = load_.losses();
}

void RouterState::load(Ops& ops, const LoadedMicroBatch& loaded) {
  board_->weights.set(ops, kind_, loaded.index, loaded.aux_scale);
}

// Counts are summed over ranks here, as the update needs them; auxiliary losses with the other numbers of the step.
void RouterState::after_backward(const StepRun& run) {
  load_.sum(run.ops, run.groups.world);
  const Tensor sums = board_->scalars.slot(sums_);
  for (std::int64_t i = 0; i < aux_losses; ++i)
    run.ops(SumArgs{.x = load_.losses().rows(i, i + 1), .out = sums.rows(i, i + 1)});
}

// Losses are means over layers and microbatches, without coefficients.
void RouterState::report(const StepReading& reading, const ReportedStep& step, MetricList& metrics) {
  const auto terms = static_cast<double>(layers_) * static_cast<double>(step.samples / micro_batch_);
  for (const Loss& loss : losses_)
    metrics.add(loss.name,
                reading.number_at("aux_losses", static_cast<std::size_t>(loss.kind)) / (loss.divisor * terms));
  report_load(reading.values<std::int32_t>("expert_counts"), metrics);
}

// Each layer has a load imbalance, the most tokens of an expert over the mean, and a fraction of experts without
// tokens; where it is asked for, the load of every expert is listed.
void RouterState::report_load(std::span<const std::int32_t> counts, MetricList& metrics) {
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    const auto load = counts.subspan(layer * experts_, experts_);
    const auto all = static_cast<double>(std::accumulate(load.begin(), load.end(), std::int64_t{0}));
    const auto of_experts = static_cast<double>(experts_);
    max_over_mean_[layer] = all > 0 ? *std::max_element(load.begin(), load.end()) * of_experts / all : 0;
    unused_[layer] = static_cast<double>(std::count(load.begin(), load.end(), 0)) / of_experts;
  }
  metrics.add("moe.load_max_over_mean", std::span<const double>(max_over_mean_));
  metrics.add("moe.unused_experts", std::span<const double>(unused_));
  if (log_load_) metrics.add("moe.expert_load", MetricTable{.values = counts, .columns = experts_});
}

}  // namespace tera
