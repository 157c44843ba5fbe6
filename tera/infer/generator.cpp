#include "tera/infer/generator.h"

#include <algorithm>
#include <numeric>

#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"

namespace tera {

namespace {

// One sequence at a time, without sequence parallelism: tensor-parallel ranks have all rows.
Setup for_generation(Setup setup) {
  setup.batch.num_microbatches = 1;
  setup.batch.rampup = {};
  setup.parallel.sequence_parallel = false;
  setup.parallel.sharding = Sharding::no_shard;
  return setup;
}

// Drops what only training needs: the MTP layers, expert capacity and forced load balance. In generation a token goes
// to the experts that its router chooses, whatever the other tokens are.
ModelShape for_generation(ModelShape model) {
  model.mtp_layers = 0;
  if (!model.moe) return model;
  model.moe->capacity_factor = 0;
  model.moe->router.force_balance = false;
  return model;
}

// All ranks of the one replica have the same rows.
ExpertParallel experts_of_same_rows(ExpertParallel experts) {
  experts.same_rows = true;
  return experts;
}

// The lowest rank of the last virtual pipeline stage, which has the head.
int rank_with_logits(const Setup& setup) {
  const Placement placement = stage_layout(setup).placement;
  return MeshPlan(setup.parallel.mesh).rank({.pp = placement.rank_of(placement.virtual_stages() - 1)});
}

}  // namespace

Generator::Generator(const Setup& setup, Backend& backend, const Capacity& capacity, Comm* world)
    : model_(for_generation(setup.model)),
      capacity_(capacity),
      layout_(for_generation(setup), world ? world->rank() : 0),
      sampling_rank_(rank_with_logits(setup)),
      params_(DType::f32),
      chunks_(build_chunks(make_spec(model_, 0), layout_.chunks, params_, layout_.tp,
                           experts_of_same_rows(layout_.experts))),
      stage_{.evaluation = layout_.evaluation, .hidden = model_.hidden, .dtype = DType::f32, .pp = &layout_.groups.pp},
      ops_(*backend.ops) {
  require_user(capacity.max_tokens <= model_.max_positions, "{} tokens are more than the model's {} positions",
               capacity.max_tokens, model_.max_positions);
  for (const auto& chunk : chunks_) stage_.chunks.emplace_back(chunk);
  params_.lay_out();
  bind(backend, world);
}

void Generator::bind(Backend& backend, Comm* world) {
  memory_ = PlannedMemory(*backend.device, plan(*backend.rules));
  Arena weights = memory_.arena("weights"), constants = memory_.arena("constants"),
        inputs = memory_.arena("inputs and cache");
  params_.bind({weights, constants});
  bind_inputs(inputs);
  ops_.bind_workspace(memory_.bytes("workspace"));
  stage_memory_ = memory_.stage(StageMemory::measuring(stage_));
  if (!world) alone_ = make_self_comm(ops_);
  layout_.groups.join(world ? *world : *alone_);
  pipeline_ = std::make_unique<Pipeline>(ops_, stage_, stage_memory_);
  params_.fill_constants(ops_);
}

void Generator::bind_inputs(Arena& arena) {
  tokens_ = arena.take(shape(capacity_.max_prompt), DType::i32, "tokens");
  positions_ = arena.take(shape(capacity_.max_prompt), DType::i32, "positions");
  chosen_ = arena.take(shape(1), DType::i32, "chosen token");
  const std::int64_t logits = capacity_.every_row ? capacity_.max_prompt : 1;
  if (layout_.has_loss) logits_ = arena.take(shape(logits, model_.padded_vocab), DType::f32, "logits");
  const std::int64_t heads = std::max<std::int64_t>(model_.kv_heads / layout_.tp.size(), 1);
  const Shape rows = shape(capacity_.max_tokens, heads, model_.head_dim);
  layers_.assign(static_cast<std::size_t>(model_.num_layers), {});
  for (const BlockRange& chunk : layout_.chunks)
    for (std::int64_t i = chunk.first_layer; i < chunk.first_layer + chunk.layers; ++i)
      layers_[static_cast<std::size_t>(i)] = {.k = arena.take(rows, DType::f32, "key cache"),
                                              .v = arena.take(rows, DType::f32, "value cache")};
  cache_.layers = layers_;
}

MicroBatch Generator::microbatch(std::int64_t tokens, std::int64_t past) {
  cache_.past = past;
  return {.tokens = tokens_.rows(0, tokens),
          .positions = positions_.rows(0, tokens),
          .logits = logits_ ? logits_.rows(0, std::min(tokens, logits_.dim(0))) : Tensor{},
          .training = false,
          .cache = &cache_};
}

MemoryPlan Generator::plan(const WorkspaceRules& rules) {
  Arena weights = Arena::measuring(), constants = Arena::measuring(), inputs = Arena::measuring();
  params_.bind({weights, constants});
  bind_inputs(inputs);
  PlanOps ops(rules);
  StageMemory measured = StageMemory::measuring(stage_);
  Pipeline pipeline(ops, stage_, measured);
  const auto rehearse = [&](const MicroBatch& mb) { pipeline.forward({&mb, 1}); };
  rehearse(microbatch(capacity_.max_prompt, 0));
  rehearse(microbatch(1, capacity_.max_tokens - 1));

  MemoryPlan plan;
  plan.add("weights", weights);
  plan.add("constants", constants);
  plan.add("inputs and cache", inputs);
  plan.add_stage(measured);
  plan.add_bytes("workspace", ops.workspace_peak());
  return plan;
}

void Generator::forward(std::span<const std::int32_t> tokens, std::int64_t past) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(past));
  ops_.from_host(std::as_bytes(tokens), tokens_.rows(0, rows));
  ops_.from_host(std::as_bytes(std::span(positions)), positions_.rows(0, rows));
  const MicroBatch mb = microbatch(rows, past);
  pipeline_->forward({&mb, 1});
}

// Samples the token after the one that was just passed through the model.
std::int32_t Generator::next_token(const GenerateOptions& options, std::int64_t position) {
  std::int32_t token = -1;
  if (layout_.groups.rank == sampling_rank_) {
    ops_.to_host(logits_.rows(0, 1), std::as_writable_bytes(std::span(host_logits_)));
    token = sample_token(std::span(host_logits_).first(static_cast<std::size_t>(model_.vocab)), options.sampling,
                         rng_stream(options.seed, "generate"), static_cast<std::uint64_t>(position), candidates_);
  }
  Comm& world = layout_.groups.world;
  if (world.size() == 1) return token;
  ops_.from_host(std::as_bytes(std::span(&token, 1)), chosen_);
  ops_.wait(world.broadcast(chosen_, sampling_rank_, ops_.record()));
  ops_.to_host(chosen_, std::as_writable_bytes(std::span(&token, 1)));
  return token;
}

void Generator::generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                         const std::function<void(std::int32_t)>& emit) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  require(length >= 1 && length <= capacity_.max_prompt && !capacity_.every_row, "a prompt of {} tokens, room for {}",
          length, capacity_.max_prompt);
  host_logits_.resize(static_cast<std::size_t>(model_.padded_vocab));
  candidates_.resize(host_logits_.size());

  forward(prompt, 0);
  const std::int64_t end = length + std::min(options.max_new_tokens, capacity_.max_tokens - length);
  for (std::int64_t position = length; position < end; ++position) {
    const std::int32_t token = next_token(options, position);
    if (std::ranges::find(options.stop, token) != options.stop.end()) return;
    emit(token);
    if (position + 1 < end) forward(std::span(&token, 1), position);
  }
}

std::span<const float> Generator::prompt_logits(std::span<const std::int32_t> prompt) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  require(length >= 1 && length <= capacity_.max_prompt && capacity_.every_row, "a prompt of {} tokens, room for {}",
          length, capacity_.max_prompt);
  forward(prompt, 0);
  if (!has_logits()) return {};
  host_logits_.resize(static_cast<std::size_t>(length * model_.padded_vocab));
  ops_.to_host(logits_.rows(0, length), std::as_writable_bytes(std::span(host_logits_)));
  return host_logits_;
}

}  // namespace tera
