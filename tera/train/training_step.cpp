#include "tera/train/training_step.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/checkpoint/rank_file.h"
#include "tera/comm/agree.h"
#include "tera/plan/memory_advisor.h"
#include "tera/train/step/expert_dispatch.h"
#include "tera/train/step/mtp_losses.h"
#include "tera/train/step/rehearsal.h"
#include "tera/train/step/router_state.h"
#include "tera/train/step/token_loss.h"

namespace tera {
namespace {

DType compute_dtype(Precision precision) {
  if (precision == Precision::fp16) return DType::f16;
  return precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

Stage make_stage(const Setup& setup, RankLayout& layout, DType dtype) {
  return {.training = layout.training,
          .smaller = layout.smaller,
          .evaluation = layout.evaluation,
          .hidden = setup.model.hidden,
          .dtype = dtype,
          .row_shards = layout.tp.cuts_rows() ? layout.tp.size() : 1,
          .pp = &layout.groups.pp,
          .overlap_p2p = setup.parallel.overlap_p2p_comm,
          .w_in_b = setup.parallel.tp_comm_overlap && layout.tp.size() > 1,
          .offload = offload_tags(setup.model.offload)};
}

// Reasons that are known before a step: calls that differ between steps, or that other threads of this process join.
std::string why_not_recorded(const Setup& setup, const RankLayout& layout) {
  if (setup.batch.packs_documents) return "packed documents change the calls from step to step";
  if (layout.groups.world.size() > 1) return "several ranks work together";
  if (setup.model.offload != OffloadShape{}) return "offloaded activations travel beside the queue";
  return {};
}

StepFeatures::List make_features(const Setup& setup, const RankLayout& layout, const ParamStore& params,
                                 StepFeatures::List more) {
  more.push_back(std::make_unique<LossScaling>(setup));
  more.push_back(std::make_unique<TokenLoss>(setup, layout));
  if (setup.model.mtp_layers > 0) more.push_back(std::make_unique<MtpLosses>(setup, layout));
  if (setup.model.moe) more.push_back(std::make_unique<RouterState>(setup, params));
  if (setup.model.moe) more.push_back(std::make_unique<ExpertDispatch>(setup, layout));
  return more;
}

}  // namespace

TrainingStep::TrainingStep(const Setup& setup, int rank)
    : TrainingStep(setup, rank, stage_schedules(setup, MeshPlan(setup.parallel.mesh).coord(rank).pp)) {}

TrainingStep::TrainingStep(const Setup& setup, int rank, StageSchedules schedules, StepFeatures::List more)
    : setup_(setup),
      compute_(compute_dtype(setup.config.mixed_precision.precision)),
      layout_(setup, rank, std::move(schedules)),
      global_model_(layout_.global_model(setup)),
      params_(compute_, setup.model.freeze),
      chunks_(build_chunks(make_spec(setup.model, static_cast<std::uint64_t>(setup.config.train.seed)), layout_.chunks,
                           params_, layout_.tp, layout_.experts, layout_.cp)),
      optimizer_(setup.config.optimizer, params_),
      stage_(make_stage(setup, layout_, compute_)),
      inputs_(setup_, layout_),
      features_(make_features(setup_, layout_, params_, std::move(more))),
      scaling_(&features_.get<LossScaling>()) {
  StepScalars& scalars = features_.board().scalars;
  votes_ = scalars.add({.name = "votes", .count = 2, .in_evaluation = true});
  grad_norm_ = scalars.add({.name = "grad_norm", .combine = Combine::same});
  scaling_->describe_state();
  if (scaling_->scaler()) optimizer_.scale_with(*scaling_->scaler());
  for (const auto& chunk : chunks_) stage_.chunks.emplace_back(chunk);
  params_.lay_out(layout_.flat);
  optimizer_.leave_gradients();
  require_user(!global_model_.norm_keys.empty(), "model.freeze: the patterns leave no parameter to train");
  optimizer_.span_ranks(
      {.world = &layout_.groups.world, .counts = layout_.counts_norm, .parts_of_model = global_model_.norm_keys});
}

StepEngine::Parts TrainingStep::parts() {
  return {.setup = setup_,
          .layout = layout_,
          .params = params_,
          .chunks = chunks_,
          .stage = stage_,
          .optimizer = optimizer_,
          .inputs = inputs_,
          .features = features_};
}

// Called twice: to measure, then to bind.
void TrainingStep::bind_memory(Arenas& arenas) {
  StepBoard& board = features_.board();
  const int ranks = layout_.groups.world.size();
  params_.bind({arenas.weights, arenas.constants, &arenas.masters, &arenas.grads});
  board.weights.bind(arenas.inputs, setup_.batch.largest_step(), scaling_->scales_losses());
  board.scalars.bind(arenas.inputs, ranks);
  board.vetoes.bind(arenas.inputs);
  inputs_.bind(arenas.inputs);
  features_.each([&](StepFeature& feature) { feature.bind({arenas.inputs, arenas.optimizer}); });
  inputs_.attach(features_);
  optimizer_.veto_with(board.vetoes.flags());
  optimizer_.bind(arenas.optimizer);
  board.scalars.attach(grad_norm_, optimizer_.grad_norm());
  if (ranks > 1) agreement_ = arenas.inputs.take(shape(ranks), DType::i64, "what ranks compare");
}

MemoryPlan TrainingStep::plan(const WorkspaceRules& rules) {
  PlanOps ops(rules);
  return rehearse(ops);
}

MemoryPlan TrainingStep::rehearse(PlanOps& ops) {
  Arenas arenas{Arena::measuring(), Arena::measuring(), Arena::measuring(),
                Arena::measuring(), Arena::measuring(), Arena::measuring()};
  bind_memory(arenas);
  StageMemory measured = StageMemory::measuring(stage_);
  StepEngine engine(ops, parts(), measured);
  rehearse_steps(ops, engine);

  MemoryPlan plan;
  plan.add("weights", arenas.weights);
  plan.add("constants", arenas.constants);
  plan.add("master weights", arenas.masters);
  plan.add("gradients", arenas.grads);
  plan.add("optimizer", arenas.optimizer);
  plan.add("inputs", arenas.inputs);
  plan.add_stage(measured);
  plan.add_bytes("workspace", ops.workspace_peak());
  const CheckpointConfig& saving = setup_.config.checkpoint;
  if (!saving.save.empty() && saving.async_save) {
    const ModelState kept = state();
    plan.add_saving_bytes(RankFile(kept.tensors(), kept.written(layout_.replicas)).bytes());
  }
  return plan;
}

// One step for each smaller degree of dynamic context parallelism, with all microbatches of that degree: a microbatch's
// memory depends on its own degree alone, so any mixture fits where each degree does. Then smaller steps that may need
// more, and last the largest step, of which FLOPs and traffic are counted.
void TrainingStep::rehearse_steps(PlanOps& ops, StepEngine& engine) {
  const std::int64_t largest = setup_.batch.largest_step();
  const std::size_t degrees = layout_.degrees.size();
  for (std::size_t degree = 0; degrees > 1 && degree < degrees; ++degree) {
    inputs_.set_degree(degree);
    if (degree + 1 < degrees) engine.forward_backward(largest);
  }
  for (const StagePlan& fewer : stage_.smaller)
    if (needs_more(fewer, stage_.training)) engine.forward_backward(fewer.microbatches);
  const double flops_of_smaller = ops.flops();
  for (PlannedComm* group : layout_.groups.all()) group->reset_traffic();
  engine.forward_backward(largest);
  planned_.flops = ops.flops() - flops_of_smaller;
  optimizer_.prepare(ops, LearningRates{}, 1);
  engine.update();
  planned_.traffic.clear();
  for (const PlannedComm* group : layout_.groups.all()) planned_.traffic.push_back(group->traffic());
  engine.evaluate();
}

void TrainingStep::bind(Backend& backend) {
  alone_ = make_self_comm(*backend.ops);
  bind(backend, *alone_);
}

void TrainingStep::bind(Backend& backend, Comm& world) {
  PlanOps rehearsal(*backend.rules);
  memory_ = PlannedMemory(*backend.device, rehearse(rehearsal), [&](double needed, double available) {
    return advise_on_memory(setup_, *backend.rules, needed, available);
  });
  inputs_.make_splits();
  Arenas arenas{memory_.arena("weights"),   memory_.arena("constants"), memory_.arena("master weights"),
                memory_.arena("gradients"), memory_.arena("optimizer"), memory_.arena("inputs")};
  features_.each([&](StepFeature& feature) { feature.allocate_host(*backend.device); });
  bind_memory(arenas);
  features_.board().scalars.allocate_host(*backend.device);
  ops_ = backend.ops.get();
  ops_->bind_workspace(memory_.bytes("workspace"));
  prepare_kernels(rehearsal);
  join(rehearsal, world);
  make_engine();
  params_.initialize(*ops_, static_cast<std::uint64_t>(setup_.config.train.seed));
  features_.board().scalars.clear(*ops_);
  features_.each([&](StepFeature& feature) { feature.start(*ops_); });
  const bool wanted = ops_->traits().asynchronous && setup_.config.train.cuda_graph_impl != CudaGraphImpl::none;
  graph_.reset(wanted, why_not_recorded(setup_, layout_));
}

// The memory of activations and scratch is free until the first step, and contiguous: kernels may be timed in it.
void TrainingStep::prepare_kernels(const PlanOps& rehearsal) {
  const std::span<std::byte> first = memory_.bytes(activations_name(Life::f_to_b, 0, stage_.chunks.size())),
                             last = memory_.bytes("scratch");
  const PlannedCalls& calls = rehearsal.planned_calls();
  ops_->prepare(setup_.batch.packs_documents ? with_fewer_documents(calls) : calls,
                {first.data(), last.data() + last.size()});
}

// A step's results are read while the next one is enqueued, so tickets of two steps are live, and those that
// communication records beside them. Reserving forgets earlier tickets, so all ranks must be done with them: the
// barrier. Ranks whose communication plans differ would wait for each other until the timeout, so they compare them.
void TrainingStep::join(const PlanOps& rehearsal, Comm& world) {
  constexpr std::size_t for_the_rest = 256;
  world.barrier();
  ops_->reserve_tickets(2 * rehearsal.records() + for_the_rest);
  layout_.groups.join(world);
  const auto groups = layout_.groups.all();
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (groups[i]->size() > 1)
      agree(*groups[i], *ops_, agreement_, fmt::format("the communication plan of group {}", groups[i]->name()),
            planned_.traffic[i].hash);
}

void TrainingStep::make_engine() {
  stage_memory_ = memory_.stage(StageMemory::measuring(stage_));
  engine_ = std::make_unique<StepEngine>(*ops_, parts(), stage_memory_);
}

void TrainingStep::load(std::int64_t index, const BatchSpans& host, float scale, float aux_scale,
                        std::span<const float> mtp_scales) {
  const BatchSpans local = inputs_.load(*ops_, index, host);
  const LoadedMicroBatch loaded{
      .index = index, .rows = local, .scale = scale, .aux_scale = aux_scale, .mtp_scales = mtp_scales};
  features_.each([&](StepFeature& feature) { feature.load(*ops_, loaded); });
}

void TrainingStep::forward_backward(Microbatches microbatches) {
  engine_->forward_backward(microbatches.value_or(setup_.batch.num_microbatches));
}

void TrainingStep::update(const LearningRates& rates) {
  optimizer_.prepare(*ops_, rates, scaling_->next_update());
  engine_->update();
}

// Batches and what prepare() writes are on the device before the graph is replayed: the queue keeps the order.
void TrainingStep::run(const LearningRates& rates, Microbatches microbatches) {
  const std::int64_t number = microbatches.value_or(setup_.batch.num_microbatches);
  optimizer_.prepare(*ops_, rates, scaling_->next_update());
  const auto calls = [&] {
    engine_->forward_backward(number);
    engine_->update();
  };
  graph_.run(*ops_, number == setup_.batch.largest_step(), calls, [&] { make_engine(); });
}

TrainingStep::Evaluated TrainingStep::evaluate(bool stop) {
  const StepScalars& scalars = features_.board().scalars;
  scalars.set(*ops_, votes_, std::array{stop ? 1.0 : 0.0, 0.0});
  engine_->evaluate();
  ops_->finish(scalars.begin_read(*ops_, StepScalars::When::evaluation, StepScalars::evaluation_reading));
  const StepReading reading = scalars.reading(StepScalars::evaluation_reading);
  features_.each([&](StepFeature& feature) { feature.read(reading, StepScalars::When::evaluation); });
  return {.loss_sum = reading.number("loss_sum"), .stop = votes_of(reading).stop};
}

TrainingStep::Reading TrainingStep::read_back(const StepVotes& votes) {
  const StepScalars& scalars = features_.board().scalars;
  scalars.set(*ops_, votes_, std::array{votes.stop ? 1.0 : 0.0, votes.written ? 1.0 : 0.0});
  scalars.combine(*ops_, layout_.groups.world, StepScalars::When::step);
  const std::size_t slot = readings_++ % StepScalars::step_readings;
  return {scalars.begin_read(*ops_, StepScalars::When::step, slot), slot};
}

StepReading TrainingStep::result(const Reading& reading) {
  ops_->finish(reading.ticket);
  const StepReading read = features_.board().scalars.reading(reading.slot);
  features_.each([&](StepFeature& feature) { feature.read(read, StepScalars::When::step); });
  return read;
}

VoteCounts votes_of(const StepReading& reading) {
  return {.stop = reading.number_at("votes", 0), .written = reading.number_at("votes", 1)};
}

void TrainingStep::load_checkpoint(const Checkpoint& checkpoint, Checkpoint::Take take,
                                   const std::optional<VerifyShard>& verified) {
  checkpoint.load(state(), take, *ops_, verified);
  if (take == Checkpoint::Take::everything)
    features_.each([&](StepFeature& feature) { feature.resume(*ops_, checkpoint.source()); });
  engine_->replicas().all_gather_params();
  wait_for_weights();
}

}  // namespace tera
