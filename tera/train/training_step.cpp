#include "tera/train/training_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/checkpoint/rank_file.h"
#include "tera/comm/agree.h"
#include "tera/nn/ffn/dispatch.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/loss.h"
#include "tera/ops/planned_calls.h"
#include "tera/plan/memory_advisor.h"
#include "tera/plan/world_plan.h"

namespace tera {
namespace {

DType compute_dtype(Precision precision) {
  if (precision == Precision::fp16) return DType::f16;
  return precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

// Chunks whose F is overlapped with a B, and the chunks of those B's.
std::set<std::pair<Act, int>> chunks_in_pairs(const StagePlan& plan) {
  std::set<std::pair<Act, int>> chunks;
  for (std::size_t i = 0; i < plan.actions.size(); ++i)
    if (plan.actions[i].with_next) {
      chunks.emplace(Act::F, plan.actions[i].chunk);
      chunks.emplace(Act::B, plan.actions[i + 1].chunk);
    }
  return chunks;
}

// Whether one plan may need memory that the other does not show: arenas and buffers are of one size each, so their
// numbers decide, and some scratch is needed by overlapped F-B pairs alone.
bool needs_more(const StagePlan& plan, const StagePlan& than) {
  const auto pairs = chunks_in_pairs(plan), known = chunks_in_pairs(than);
  if (!std::ranges::includes(known, pairs)) return true;
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    const ChunkPlan &a = plan.chunks[i], &b = than.chunks[i];
    if (a.x > b.x || a.dy > b.dy || a.pools.f_to_b > b.pools.f_to_b || a.pools.f_to_w > b.pools.f_to_w ||
        a.pools.b_to_w > b.pools.b_to_w)
      return true;
  }
  return false;
}

constexpr std::int64_t votes_end = 3;  // in loss_sum_; auxiliary losses follow, then MTP losses
constexpr auto aux_losses = static_cast<std::int64_t>(AuxLoss::count);

// Rows of a microbatch on one context-parallel rank.
std::int64_t rows_of_rank(const Setup& setup) {
  return setup.batch.micro_batch * setup.batch.seq_length / setup.parallel.mesh.cp;
}

// A rehearsal has the maximum number of documents; a step has fewer, one of several counts.
PlannedCalls with_fewer_documents(PlannedCalls calls) {
  const auto expand = [](auto& kept) {
    const auto largest = kept;
    for (const auto& call : largest)
      for (const std::int64_t documents : document_counts(call.shape.q_offsets.dim(0) - 1)) {
        auto fewer = call;
        fewer.shape.q_offsets = fewer.shape.k_offsets = call.shape.q_offsets.rows(0, documents + 1);
        if (documents < call.shape.q_offsets.dim(0) - 1) kept.push_back(fewer);
      }
  };
  expand(calls.attentions);
  expand(calls.attention_backs);
  return calls;
}

}  // namespace

TrainingStep::TrainingStep(const Setup& setup, int rank)
    : TrainingStep(setup, rank, stage_schedules(setup, MeshPlan(setup.parallel.mesh).coord(rank).pp)) {}

TrainingStep::TrainingStep(const Setup& setup, int rank, StageSchedules schedules)
    : setup_(setup),
      compute_(compute_dtype(setup.config.mixed_precision.precision)),
      layout_(setup, rank, std::move(schedules)),
      global_model_(layout_.global_model(setup)),
      params_(compute_, setup.model.freeze),
      chunks_(build_chunks(make_spec(setup.model, static_cast<std::uint64_t>(setup.config.train.seed)), layout_.chunks,
                           params_, layout_.tp, layout_.experts, layout_.cp)),
      optimizer_(setup.config.optimizer, params_),
      stage_{.training = layout_.training,
             .smaller = layout_.smaller,
             .evaluation = layout_.evaluation,
             .hidden = setup.model.hidden,
             .dtype = compute_,
             .row_shards = layout_.tp.cuts_rows() ? layout_.tp.size() : 1,
             .pp = &layout_.groups.pp,
             .overlap_p2p = setup.parallel.overlap_p2p_comm,
             .w_in_b = setup.parallel.tp_comm_overlap && layout_.tp.size() > 1,
             .offload = offload_tags(setup.model.offload)} {
  const MixedPrecisionConfig& mixed = setup.config.mixed_precision;
  if (mixed.precision == Precision::fp16) optimizer_.scale_with(scaler_.emplace(mixed));
  if (const auto& moe = setup.model.moe)
    expert_load_.emplace(
        ExpertLoad::Options{
            .layers = setup.model.expert_layers(), .experts = moe->experts, .bias_rate = moe->router.bias_rate},
        params_);
  for (const auto& chunk : chunks_) stage_.chunks.emplace_back(chunk);
  params_.lay_out(layout_.flat);
  optimizer_.leave_gradients();
  require_user(!global_model_.norm_keys.empty(), "model.freeze: the patterns leave no parameter to train");
  optimizer_.span_ranks(
      {.world = &layout_.groups.world, .counts = layout_.counts_norm, .parts_of_model = global_model_.norm_keys});
}

DataParallel TrainingStep::make_data_parallel(Ops& ops) {
  DataParallel::Options options{.overlap_grad_reduce = setup_.parallel.overlap_grad_reduce,
                                .overlap_param_gather = setup_.parallel.overlap_param_gather};
  for (const auto& chunk : chunks_)
    for (const auto& block : chunk) options.grads_in_f.push_back(block->makes_gradients_in_f());
  return {params_, layout_.groups, ops, std::move(options)};
}

void TrainingStep::bind_inputs(Arena& arena) {
  const std::int64_t all = setup_.batch.micro_batch * setup_.batch.seq_length;
  const Shape rows = shape(all / layout_.cp.size());
  const bool several = layout_.cp.size() > 1, packed = setup_.batch.packs_documents;
  const GlobalRows shared = several && !packed ? take_global_rows(arena) : GlobalRows{};  // by all microbatches
  const std::int64_t kinds = (setup_.model.moe ? 2 : 1) + setup_.model.mtp_layers;
  const std::int64_t largest = setup_.batch.largest_step();
  const Shape microbatches = shape(kinds * largest);
  loss_weights_ = loss_scales_ = arena.take(microbatches, DType::f32, "loss weights");
  if (scaler_) loss_scales_ = arena.take(microbatches, DType::f32, "scaled loss weights");
  const bool may_overflow = setup_.model.moe && setup_.model.moe->rank_capacity_factor > 0;
  if (may_overflow) {
    expert_overflow_ = arena.take(shape(1), DType::i32, "overflow of experts");
    all_overflows_ = arena.take(shape(layout_.groups.world.size()), DType::i32, "overflow of experts");
  }
  if (expert_load_) expert_load_->bind(arena);
  inputs_.clear();
  inputs_.reserve(static_cast<std::size_t>(largest));  // batches look into them
  batch_.clear();
  evaluation_batch_.clear();
  for (std::int64_t i = 0; i < largest; ++i) {
    inputs_.push_back({.tokens = arena.take(rows, DType::i32, "tokens"),
                       .targets = arena.take(rows, DType::i32, "targets"),
                       .positions = arena.take(rows, DType::i32, "positions"),
                       .rows = arena.take(rows, DType::i64, "row ids"),
                       .token_loss = arena.take(rows, DType::f32, "token losses"),
                       .offsets = {},
                       .all = several && packed ? take_global_rows(arena) : shared,
                       .mtp_tokens = {},
                       .mtp_targets = {},
                       .mtp_loss = {},
                       .mtp_rows = {}});
    if (setup_.model.mtp_layers > 0 && layout_.has_loss) bind_mtp_rows(arena, i);
    Inputs& taken = inputs_.back();
    if (several && setup_.model.attention_dropout > 0)
      (layout_.cp.comm == CpCommType::p2p ? taken.all.cp_order_row_ids : taken.all.rows) =
          arena.take(shape(all), DType::i64, "row ids of all ranks");
    if (packed) taken.offsets = arena.take(shape(all + 1), DType::i32, "document offsets");
    batch_.push_back(microbatch(i, /*training=*/true));
    if (i < setup_.batch.num_microbatches) evaluation_batch_.push_back(microbatch(i, /*training=*/false));
  }
  loss_sum_ =
      arena.take(shape(votes_end + (expert_load_ ? aux_losses : 0) + setup_.model.mtp_layers), DType::f64, "loss sum");
  const int ranks = layout_.groups.world.size();
  if (ranks > 1) agreement_ = arena.take(shape(ranks), DType::i64, "what ranks compare");
}

// Only the rank with the last virtual stage has MTP layers, which read these rows.
void TrainingStep::bind_mtp_rows(Arena& arena, std::int64_t index) {
  Inputs& inputs = inputs_.back();
  const Shape rows = shape(setup_.model.mtp_layers, inputs.tokens.dim(0));
  inputs.mtp_tokens = arena.take(rows, DType::i32, "tokens ahead");
  inputs.mtp_targets = arena.take(rows, DType::i32, "targets ahead");
  inputs.mtp_loss = arena.take(rows, DType::f32, "token losses ahead");
  const auto of_depth = [&](const Tensor& all, std::int64_t depth) {
    return all.rows(depth, depth + 1).view(shape(rows[1]));
  };
  for (std::int64_t depth = 0; depth < setup_.model.mtp_layers; ++depth)
    inputs.mtp_rows.push_back({.tokens = of_depth(inputs.mtp_tokens, depth),
                               .targets = of_depth(inputs.mtp_targets, depth),
                               .token_loss = of_depth(inputs.mtp_loss, depth),
                               .loss_scale = mtp_row(loss_scales_, depth, index)});
}

// The row tables that attention needs for its kind of communication (ring, all-gather or Ulysses); without the row ids,
// which only dropout needs.
GlobalRows TrainingStep::take_global_rows(Arena& arena) const {
  const std::int64_t all = setup_.batch.micro_batch * setup_.batch.seq_length;
  const CpCommType comm = layout_.cp.comm;
  const auto take = [&](bool needed, std::int64_t rows) {
    return needed ? arena.take(shape(rows), DType::i32, "rows of context ranks") : Tensor{};
  };
  const bool in_order = comm != CpCommType::p2p, by_rank = comm != CpCommType::a2a;
  const bool documents = by_rank && setup_.batch.packs_documents;
  return {.rows = {},
          .cp_order = take(in_order, all),
          .cp_order_rows = take(in_order, all),
          .positions = take(comm == CpCommType::all_gather, all),
          .cp_order_positions = take(by_rank, all),
          .cp_order_row_ids = {},
          .cp_order_offsets = take(documents, layout_.cp.size() * (all + 1))};
}

// The weight of a microbatch's auxiliary losses; none where the model has no such losses.
Tensor TrainingStep::aux_row(const Tensor& weights, std::int64_t index) const {
  const std::int64_t row = setup_.batch.largest_step() + index;
  return setup_.model.moe ? weights.rows(row, row + 1) : Tensor{};
}

// The weight of a microbatch's MTP losses of a depth, from 0.
Tensor TrainingStep::mtp_row(const Tensor& weights, std::int64_t depth, std::int64_t index) const {
  const std::int64_t row = ((setup_.model.moe ? 2 : 1) + depth) * setup_.batch.largest_step() + index;
  return weights.rows(row, row + 1);
}

MicroBatch TrainingStep::microbatch(std::int64_t index, bool training) const {
  const Inputs& inputs = inputs_.at(static_cast<std::size_t>(index));
  return {.tokens = inputs.tokens,
          .targets = inputs.targets,
          .positions = inputs.positions,
          .rows = inputs.rows,
          .offsets = inputs.offsets,  // for the maximum number of documents, until a microbatch is loaded
          .batch = setup_.batch.micro_batch,
          .all = inputs.all,
          .token_loss = inputs.token_loss,
          .loss_scale = loss_scales_.rows(index, index + 1),
          .aux_scale = aux_row(loss_scales_, index),
          .expert_counts = expert_load_ ? expert_load_->counts() : Tensor{},
          .aux_losses = expert_load_ ? expert_load_->losses() : Tensor{},
          .expert_overflow = expert_overflow_,
          .expert_offsets = expert_offsets_,
          .mtp = inputs.mtp_rows,
          .training = training};
}

MemoryPlan TrainingStep::plan(const WorkspaceRules& rules) {
  PlanOps ops(rules);
  return rehearse(ops);
}

MemoryPlan TrainingStep::rehearse(PlanOps& ops) {
  Arena weights = Arena::measuring(), constants = Arena::measuring(), masters = Arena::measuring();
  Arena grads = Arena::measuring(), optimizer = Arena::measuring(), inputs = Arena::measuring();
  params_.bind({weights, constants, &masters, &grads});
  if (scaler_) scaler_->bind(optimizer);
  optimizer_.bind(optimizer);
  bind_inputs(inputs);

  StageMemory measured = StageMemory::measuring(stage_);
  Pipeline pipeline(ops, stage_, measured);
  DataParallel replicas = make_data_parallel(ops);
  rehearse_degrees(ops, pipeline, replicas);
  for (const StagePlan& fewer : stage_.smaller)
    if (needs_more(fewer, stage_.training)) run_forward_backward(ops, pipeline, replicas, fewer.microbatches);
  const double flops_of_smaller = ops.flops();
  for (PlannedComm* group : layout_.groups.all()) group->reset_traffic();
  run_forward_backward(ops, pipeline, replicas, setup_.batch.largest_step());
  planned_flops_ = ops.flops() - flops_of_smaller;
  optimizer_.prepare(ops, LearningRates{}, 1);
  run_update(ops, replicas);
  planned_traffic_.clear();
  for (const PlannedComm* group : layout_.groups.all()) planned_traffic_.push_back(group->traffic());
  run_evaluation(ops, pipeline, replicas);

  MemoryPlan plan;
  plan.add("weights", weights);
  plan.add("constants", constants);
  plan.add("master weights", masters);
  plan.add("gradients", grads);
  plan.add("optimizer", optimizer);
  plan.add("inputs", inputs);
  plan.add_stage(measured);
  plan.add_bytes("workspace", ops.workspace_peak());
  const CheckpointConfig& saving = setup_.config.checkpoint;
  if (!saving.save.empty() && saving.async_save) {
    const ModelState kept = state();
    plan.add_saving_bytes(RankFile(kept.tensors(), kept.written(layout_.replicas)).bytes());
  }
  return plan;
}

// Dynamic context parallelism: rehearses one step for each smaller degree, with all microbatches of that degree; the
// caller rehearses the largest. A microbatch's memory depends on its own degree alone, so any mixture fits where each
// degree does.
void TrainingStep::rehearse_degrees(Ops& ops, Pipeline& pipeline, DataParallel& replicas) {
  const std::int64_t rows = rows_of_rank(setup_);
  for (std::size_t degree = 0; layout_.degrees.size() > 1 && degree < layout_.degrees.size(); ++degree) {
    const std::int64_t max_documents = layout_.degrees[degree].size() * rows;
    for (std::size_t i = 0; i < inputs_.size(); ++i) set_documents(i, degree, max_documents);
    if (degree + 1 < layout_.degrees.size()) run_forward_backward(ops, pipeline, replicas, setup_.batch.largest_step());
  }
}

void TrainingStep::bind(Backend& backend) {
  alone_ = make_self_comm(*backend.ops);
  bind(backend, *alone_);
}

// These take host memory for all rows of a microbatch, so they are made only when the plan is known to fit.
void TrainingStep::make_context_splits() {
  context_.clear();
  for (const ContextParallel& ranks : layout_.degrees) {
    const bool all = ranks.size() == layout_.cp.size();
    context_.emplace_back(
        ContextParallelSplit::Options{.sequences = all ? setup_.batch.micro_batch : 1,
                                      .seq_length = all ? setup_.batch.seq_length : ranks.size() * rows_of_rank(setup_),
                                      .ranks = ranks.size(),
                                      .rank = ranks.rank(),
                                      .packed = setup_.batch.packs_documents,
                                      .mtp_depths = setup_.model.mtp_layers});
  }
}

void TrainingStep::bind(Backend& backend, Comm& world) {
  PlanOps rehearsal(*backend.rules);
  memory_ = PlannedMemory(*backend.device, rehearse(rehearsal), [&](double needed, double available) {
    return advise_on_memory(setup_, *backend.rules, needed, available);
  });
  make_context_splits();
  Arena weights = memory_.arena("weights"), constants = memory_.arena("constants");
  Arena masters = memory_.arena("master weights"), grads = memory_.arena("gradients");
  Arena optimizer = memory_.arena("optimizer"), inputs = memory_.arena("inputs");
  params_.bind({weights, constants, &masters, &grads});
  if (scaler_) scaler_->bind(optimizer);
  optimizer_.bind(optimizer);
  allocate_expert_counts(*backend.device);
  bind_inputs(inputs);
  ops_ = backend.ops.get();
  ops_->bind_workspace(memory_.bytes("workspace"));
  // The memory of activations and scratch is free until the first step, and contiguous: prepare() may time kernels in
  // it.
  const std::span<std::byte> first = memory_.bytes(activations_name(Life::f_to_b, 0, stage_.chunks.size())),
                             last = memory_.bytes("scratch");
  ops_->prepare(
      setup_.batch.packs_documents ? with_fewer_documents(rehearsal.planned_calls()) : rehearsal.planned_calls(),
      {first.data(), last.data() + last.size()});
  const std::span<std::byte> readings = backend.device->allocate_host(2 * sizeof(Result));
  read_back_ = {reinterpret_cast<Result*>(readings.data()), 2};
  std::uninitialized_fill(read_back_.begin(), read_back_.end(), Result{});
  if (expert_load_) {
    const std::span<std::byte> counts = backend.device->allocate_host(2 * expert_load_->counts().bytes());
    read_counts_ = {reinterpret_cast<std::int32_t*>(counts.data()),
                    static_cast<std::size_t>(2 * count(expert_load_->counts().shape))};
  }
  reserve_tickets(rehearsal, world);
  layout_.groups.join(world);
  agree_on_traffic();
  make_engine();
  params_.initialize(*ops_, static_cast<std::uint64_t>(setup_.config.train.seed));
  if (expert_overflow_) (*ops_)(FillArgs{.out = expert_overflow_, .value = 0});
  start_scaling();
  const bool wanted = ops_->traits().asynchronous && setup_.config.train.cuda_graph_impl != CudaGraphImpl::none;
  const std::string why_not = why_not_recorded();
  recorded_ = wanted && why_not.empty() ? Recorded::not_yet : Recorded::never;
  recording_.reset();
  ran_full_step_ = false;
  if (wanted && !why_not.empty()) remark_ = "steps run call by call, not as one CUDA graph: " + why_not;
}

// The all-to-all dispatcher copies its row offsets to the host, and expert capacity its overflows.
void TrainingStep::allocate_expert_counts(Device& device) {
  if (!setup_.model.moe) return;
  const auto allocate = [&](std::int64_t numbers) {
    const std::span<std::byte> host = device.allocate_host(static_cast<std::size_t>(numbers) * sizeof(std::int32_t));
    return std::span(reinterpret_cast<std::int32_t*>(host.data()), static_cast<std::size_t>(numbers));
  };
  if (setup_.model.moe->dispatcher == TokenDispatcher::alltoall)
    expert_offsets_ = allocate(layout_.groups.etp_ep.size() * (setup_.model.moe->experts + 1));
  if (expert_overflow_) read_overflows_ = allocate(3 * all_overflows_.dim(0));  // two readings and an evaluation
}

std::span<std::int32_t> TrainingStep::overflow_slot(std::size_t slot) const {
  const std::size_t ranks = read_overflows_.size() / 3;
  return read_overflows_.subspan(slot * ranks, ranks);
}

// Rows over the expert capacity were dropped, so the step was not the one that was asked for. Every rank throws the
// same error.
void TrainingStep::check_expert_rows(std::size_t slot) const {
  const std::span<const std::int32_t> overflows = overflow_slot(slot);
  const auto largest = std::max_element(overflows.begin(), overflows.end());
  if (largest == overflows.end() || *largest == 0) return;
  const ExpertCapacity planned = expert_capacity_of(setup_);
  fail_capacity_overflow({.rank_capacity = setup_.model.moe->rank_capacity_factor,
                          .rank = largest - overflows.begin(),
                          .arrived = planned.rows + *largest,
                          .capacity = planned.rows,
                          .even = static_cast<double>(std::max<std::int64_t>(planned.balanced, 1))});
}

// A step's results are read while the next one is enqueued, so tickets of two steps are live, and those that
// communication records beside them. Reserving forgets earlier tickets, so all ranks must be done with them: the
// barrier.
void TrainingStep::reserve_tickets(const PlanOps& rehearsal, Comm& world) {
  constexpr std::size_t for_the_rest = 256;
  world.barrier();
  ops_->reserve_tickets(2 * rehearsal.records() + for_the_rest);
}

void TrainingStep::make_engine() {
  stage_memory_ = memory_.stage(StageMemory::measuring(stage_));
  replicas_ = std::make_unique<DataParallel>(make_data_parallel(*ops_));
  pipeline_ = std::make_unique<Pipeline>(*ops_, stage_, stage_memory_);
}

void TrainingStep::start_scaling(const std::optional<LossScale>& kept) {
  if (!scaler_) return;
  const LossScale begun = scaler_->start(*ops_, updates_, kept);
  if (scaler_->rule().dynamic) loss_scale_ = begun;
}

// Reasons that are known before a step: calls that differ between steps, or that other threads of this process join.
std::string TrainingStep::why_not_recorded() const {
  if (setup_.batch.packs_documents) return "packed documents change the calls from step to step";
  if (layout_.groups.world.size() > 1) return "several ranks work together";
  if (setup_.model.offload != OffloadShape{}) return "offloaded activations travel beside the queue";
  return {};
}

// Ranks whose communication plans differ would wait for each other until the timeout.
void TrainingStep::agree_on_traffic() {
  const auto groups = layout_.groups.all();
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (groups[i]->size() > 1)
      agree(*groups[i], *ops_, agreement_, fmt::format("the communication plan of group {}", groups[i]->name()),
            planned_traffic_[i].hash);
}

void TrainingStep::load(std::int64_t index, const BatchSpans& host, float scale, float aux_scale,
                        std::span<const float> mtp_scales) {
  const auto i = static_cast<std::size_t>(index);
  const Inputs& inputs = inputs_.at(i);
  const std::int64_t shared = std::ssize(host.tokens) / rows_of_rank(setup_);
  const auto found = std::ranges::find(layout_.degrees, shared, &ContextParallel::size);
  require(found != layout_.degrees.end(), "a microbatch of {} rows, of which each rank has {}", host.tokens.size(),
          rows_of_rank(setup_));
  const auto degree = static_cast<std::size_t>(found - layout_.degrees.begin());
  ContextParallelSplit& split = context_[degree];
  const BatchSpans local = split.local_rows(host);
  ops_->from_host(std::as_bytes(local.tokens), inputs.tokens);
  ops_->from_host(std::as_bytes(local.targets), inputs.targets);
  ops_->from_host(std::as_bytes(local.positions), inputs.positions);
  ops_->from_host(std::as_bytes(local.row_ids), inputs.rows);
  require(static_cast<bool>(inputs.offsets) == !host.offsets.empty(), "a microbatch of {} offsets of documents",
          host.offsets.size());
  if (inputs.offsets) set_documents(i, degree, std::ssize(host.offsets) - 1);
  load_global_rows(i, host, split);
  ops_->from_host(std::as_bytes(std::span(&scale, 1)), loss_weights_.rows(index, index + 1));
  if (const Tensor aux = aux_row(loss_weights_, index)) ops_->from_host(std::as_bytes(std::span(&aux_scale, 1)), aux);
  if (setup_.model.mtp_layers > 0 && (scale != 0 || !mtp_scales.empty())) load_mtp_rows(index, local, mtp_scales);
  if (inputs.offsets) ops_->from_host(std::as_bytes(host.offsets), batch_[i].offsets);
}

// Packed documents: the microbatch sees the part of its inputs that so many documents take, in rows that the ranks of
// a dynamic-CP degree share.
void TrainingStep::set_documents(std::size_t index, std::size_t degree, std::int64_t documents) {
  const Inputs& inputs = inputs_[index];
  const ContextParallel& cp = layout_.degrees[degree];
  const std::int64_t shared = cp.size() * rows_of_rank(setup_);
  const auto first = [](const Tensor& buffer, std::int64_t rows) { return buffer ? buffer.rows(0, rows) : buffer; };
  GlobalRows all;
  if (cp.size() > 1)
    all = {.rows = first(inputs.all.rows, shared),
           .cp_order = first(inputs.all.cp_order, shared),
           .cp_order_rows = first(inputs.all.cp_order_rows, shared),
           .positions = first(inputs.all.positions, shared),
           .cp_order_positions = first(inputs.all.cp_order_positions, shared),
           .cp_order_row_ids = first(inputs.all.cp_order_row_ids, shared),
           .cp_order_offsets = first(inputs.all.cp_order_offsets, cp.size() * (documents + 1))};
  const auto set = [&](MicroBatch& batch) {
    batch.offsets = inputs.offsets.rows(0, documents + 1);
    batch.all = all;
    batch.cp = &cp;
  };
  set(batch_[index]);
  if (index < evaluation_batch_.size()) set(evaluation_batch_[index]);
}

void TrainingStep::load_mtp_rows(std::int64_t index, const BatchSpans& local, std::span<const float> scales) {
  const auto depths = static_cast<std::size_t>(setup_.model.mtp_layers);
  require(scales.size() == depths && local.mtp_tokens.size() == depths * local.tokens.size() &&
              local.mtp_targets.size() == local.mtp_tokens.size(),
          "a microbatch of {} rows comes with {} scales, {} tokens and {} targets of {} depths ahead",
          local.tokens.size(), scales.size(), local.mtp_tokens.size(), local.mtp_targets.size(), depths);
  for (std::size_t depth = 0; depth < depths; ++depth)
    ops_->from_host(std::as_bytes(scales.subspan(depth, 1)),
                    mtp_row(loss_weights_, static_cast<std::int64_t>(depth), index));
  const Inputs& inputs = inputs_.at(static_cast<std::size_t>(index));
  if (!inputs.mtp_tokens) return;
  ops_->from_host(std::as_bytes(local.mtp_tokens), inputs.mtp_tokens);
  ops_->from_host(std::as_bytes(local.mtp_targets), inputs.mtp_targets);
}

// The tables of other ranks' rows that attention needs under context parallelism.
void TrainingStep::load_global_rows(std::size_t index, const BatchSpans& host, const ContextParallelSplit& split) {
  const GlobalRows& all = batch_[index].all;
  const auto load = [&](auto from, const Tensor& to) {
    if (to) ops_->from_host(std::as_bytes(from), to);
  };
  load(split.cp_order(), all.cp_order);
  load(split.cp_order_rows(), all.cp_order_rows);
  load(split.positions(), all.positions);
  load(split.cp_order_positions(), all.cp_order_positions);
  load(host.row_ids, all.rows);
  load(split.cp_order_row_ids(), all.cp_order_row_ids);
  load(split.cp_order_offsets(), all.cp_order_offsets);
}

void TrainingStep::run_forward_backward(Ops& ops, Pipeline& pipeline, DataParallel& replicas,
                                        std::int64_t microbatches) {
  const auto number = static_cast<std::size_t>(microbatches);
  replicas.training(true);
  replicas.begin_gradients();
  if (scaler_) scaler_->scale(ops, loss_weights_, loss_scales_);
  if (expert_load_) expert_load_->clear(ops);
  pipeline.step(std::span(batch_).first(number), replicas);
  replicas.finish_gradients();
  sum_losses(ops, number);
  sum_mtp_losses(ops, number);
  if (expert_load_) sum_expert_load(ops);
}

void TrainingStep::run_update(Ops& ops, DataParallel& replicas) {
  optimizer_.step(ops);
  if (expert_load_) expert_load_->update(ops, optimizer_.grad_factor());
  replicas.all_gather_params();
}

// Ranks without a loss, or with the same one as another rank, add zero.
void TrainingStep::sum_losses(Ops& ops, std::size_t microbatches) {
  const Tensor losses = loss_sum_.rows(0, 1);
  if (!layout_.counts_loss) ops(FillArgs{.out = losses, .value = 0});
  for (std::size_t i = 0; layout_.counts_loss && i < microbatches; ++i)
    ops(SumArgs{.x = inputs_[i].token_loss, .out = losses, .accumulate = i > 0});
}

Tensor TrainingStep::mtp_sum(std::int64_t depth) const {
  const std::int64_t row = votes_end + (expert_load_ ? aux_losses : 0) + depth;
  return loss_sum_.rows(row, row + 1);
}

void TrainingStep::sum_mtp_losses(Ops& ops, std::size_t microbatches) {
  for (std::int64_t depth = 0; depth < setup_.model.mtp_layers; ++depth) {
    if (!layout_.counts_loss) ops(FillArgs{.out = mtp_sum(depth), .value = 0});
    for (std::size_t i = 0; layout_.counts_loss && i < microbatches; ++i)
      ops(SumArgs{.x = inputs_[i].mtp_rows[static_cast<std::size_t>(depth)].token_loss,
                  .out = mtp_sum(depth),
                  .accumulate = i > 0});
  }
}

// Auxiliary losses are summed over ranks when they are read back.
void TrainingStep::sum_expert_load(Ops& ops) {
  expert_load_->sum(ops, layout_.groups.world);
  for (std::int64_t i = 0; i < aux_losses; ++i)
    ops(SumArgs{.x = expert_load_->losses().rows(i, i + 1), .out = loss_sum_.rows(votes_end + i, votes_end + i + 1)});
}

void TrainingStep::run_evaluation(Ops& ops, Pipeline& pipeline, DataParallel& replicas) {
  replicas.training(false);
  pipeline.forward(evaluation_batch_, replicas);
  sum_losses(ops, evaluation_batch_.size());
  ops.wait(layout_.groups.world.all_reduce(loss_sum_.rows(0, 2), Reduce::sum, ops.record()));
}

void TrainingStep::forward_backward() { forward_backward(setup_.batch.num_microbatches); }

void TrainingStep::forward_backward(std::int64_t microbatches) {
  run_forward_backward(*ops_, *pipeline_, *replicas_, microbatches);
}

void TrainingStep::update(const LearningRates& rates) {
  prepare_update(rates);
  run_update(*ops_, *replicas_);
}

// The device counts the updates where there is a loss scale.
void TrainingStep::prepare_update(const LearningRates& rates) {
  if (!scaler_) ++updates_;
  optimizer_.prepare(*ops_, rates, updates_);
}

// Batches and what prepare() writes are on the device before the graph is replayed: the queue keeps the order.
void TrainingStep::run(std::int64_t microbatches, const LearningRates& rates) {
  prepare_update(rates);
  const auto calls = [&] {
    run_forward_backward(*ops_, *pipeline_, *replicas_, microbatches);
    run_update(*ops_, *replicas_);
  };
  const bool full = microbatches == setup_.batch.largest_step();
  if (full && ran_full_step_ && recorded_ == Recorded::not_yet) record(calls);
  if (full && recording_) return recording_->replay();
  calls();
  ran_full_step_ = ran_full_step_ || full;
}

// Called after a step call by call, which loaded every kernel: loading cannot be captured in a CUDA graph.
void TrainingStep::record(const std::function<void()>& calls) {
  RecordingAttempt attempt = ops_->record_calls(calls);
  recording_ = std::move(attempt.recording);
  recorded_ = recording_ ? Recorded::yes : Recorded::never;
  if (recording_) {
    remark_ = fmt::format("steps run as one CUDA graph of {} nodes", recording_->size());
  } else {
    remark_ = "steps run call by call, not as one CUDA graph: " + attempt.why_not;
    make_engine();  // the attempt may have ended in the middle of a step
  }
}

TrainingStep::Evaluated TrainingStep::evaluate(bool stop) {
  const double vote = stop ? 1.0 : 0.0;
  ops_->from_host(std::as_bytes(std::span(&vote, 1)), loss_sum_.rows(1, 2));
  run_evaluation(*ops_, *pipeline_, *replicas_);
  std::array<double, 2> sums{};
  ops_->to_host(loss_sum_.rows(0, 2), std::as_writable_bytes(std::span(sums)));
  if (!expert_overflow_) return {.loss_sum = sums[0], .stop = sums[1]};
  constexpr std::size_t slot = 2;
  ops_->wait(layout_.groups.world.all_gather(expert_overflow_, all_overflows_, ops_->record()));
  ops_->to_host(all_overflows_, std::as_writable_bytes(overflow_slot(slot)));
  check_expert_rows(slot);
  return {.loss_sum = sums[0], .stop = sums[1]};
}

TrainingStep::Reading TrainingStep::read_back(const Votes& votes) {
  const std::array<double, 2> mine{votes.stop ? 1.0 : 0.0, votes.written ? 1.0 : 0.0};
  ops_->from_host(std::as_bytes(std::span(mine)), loss_sum_.rows(1, votes_end));
  ops_->wait(layout_.groups.world.all_reduce(loss_sum_, Reduce::sum, ops_->record()));
  const std::size_t slot = readings_++ % read_back_.size();
  Result& result = read_back_[slot];
  ops_->to_host_later(loss_sum_.rows(0, 1), std::as_writable_bytes(std::span(&result.loss_sum, 1)));
  ops_->to_host_later(loss_sum_.rows(1, 2), std::as_writable_bytes(std::span(&result.stop, 1)));
  ops_->to_host_later(loss_sum_.rows(2, 3), std::as_writable_bytes(std::span(&result.written, 1)));
  ops_->to_host_later(optimizer_.grad_norm(), std::as_writable_bytes(std::span(&result.grad_norm, 1)));
  if (expert_overflow_) {
    ops_->wait(layout_.groups.world.all_gather(expert_overflow_, all_overflows_, ops_->record()));
    ops_->to_host_later(all_overflows_, std::as_writable_bytes(overflow_slot(slot)));
  }
  if (expert_load_) {
    const std::size_t counts = read_counts_.size() / read_back_.size();
    const std::span<std::int32_t> of_step = read_counts_.subspan(slot * counts, counts);
    ops_->to_host_later(loss_sum_.rows(votes_end, votes_end + aux_losses),
                        std::as_writable_bytes(std::span(result.aux_losses)));
    ops_->to_host_later(expert_load_->counts(), std::as_writable_bytes(of_step));
    result.expert_counts = of_step;
  }
  for (std::int64_t depth = 0; depth < setup_.model.mtp_layers; ++depth)
    ops_->to_host_later(
        mtp_sum(depth),
        std::as_writable_bytes(std::span(result.mtp_loss_sums).subspan(static_cast<std::size_t>(depth), 1)));
  if (scaler_) ops_->to_host_later(scaler_->state(), std::as_writable_bytes(std::span(&result.scaling, 1)));
  return {ops_->record(), slot};
}

void TrainingStep::load_checkpoint(const Checkpoint& checkpoint, Checkpoint::Take take,
                                   const std::optional<VerifyShard>& verified) {
  checkpoint.load(state(), take, *ops_, verified);
  if (take == Checkpoint::Take::everything) {
    updates_ = checkpoint.source().updates;
    start_scaling(checkpoint.source().loss_scale);
  }
  replicas_->all_gather_params();
  replicas_->wait_for_weights();
}

TrainingStep::Result TrainingStep::result(const Reading& reading) {
  ops_->finish(reading.ticket);
  const Result& result = read_back_[reading.slot];
  check_expert_rows(reading.slot);
  if (scaler_) updates_ = static_cast<std::int64_t>(result.scaling.updates);
  if (scaler_ && scaler_->rule().dynamic) loss_scale_ = result.scaling.to_keep();
  return result;
}

}  // namespace tera
