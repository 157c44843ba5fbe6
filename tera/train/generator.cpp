#include "tera/train/generator.h"

#include <numeric>

#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"

namespace tera {

Generator::Generator(const Setup& setup, Backend& backend, std::int64_t max_prompt, std::int64_t max_tokens)
    : model_(setup.model),
      max_prompt_(max_prompt),
      max_tokens_(max_tokens),
      params_(DType::f32),
      blocks_(build_blocks(make_spec(setup.model, 0), params_)),
      stage_{.chunks = {blocks_}, .evaluation = plan_forward_alone(), .hidden = model_.hidden, .dtype = DType::f32},
      ops_(*backend.ops) {
  require_user(max_tokens <= model_.max_positions, "{} tokens are more than the model's {} positions", max_tokens,
               model_.max_positions);
  params_.lay_out();
  memory_ = PlannedMemory(*backend.device, plan(*backend.rules));
  Arena weights = memory_.arena("weights"), constants = memory_.arena("constants"),
        inputs = memory_.arena("inputs and cache");
  params_.bind({weights, constants});
  bind_inputs(inputs);
  ops_.bind_workspace(memory_.bytes("workspace"));
  stage_memory_ = memory_.stage(StageMemory::measuring(stage_));
  pipeline_ = std::make_unique<Pipeline>(ops_, stage_, stage_memory_);
  params_.fill_constants(ops_);
}

void Generator::bind_inputs(Arena& arena) {
  tokens_ = arena.take(shape(max_prompt_), DType::i32, "tokens");
  positions_ = arena.take(shape(max_prompt_), DType::i32, "positions");
  logits_ = arena.take(shape(1, model_.padded_vocab), DType::f32, "logits");
  layers_.clear();
  for (std::int64_t i = 0; i < model_.num_layers; ++i) {
    const Shape rows = shape(max_tokens_, model_.kv_heads, model_.head_dim);
    layers_.push_back(
        {.k = arena.take(rows, DType::f32, "key cache"), .v = arena.take(rows, DType::f32, "value cache")});
  }
  cache_.layers = layers_;
}

MicroBatch Generator::microbatch(std::int64_t tokens, std::int64_t past) {
  cache_.past = past;
  return {.tokens = tokens_.rows(0, tokens),
          .positions = positions_.rows(0, tokens),
          .logits = logits_,
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
  rehearse(microbatch(max_prompt_, 0));
  rehearse(microbatch(1, max_tokens_ - 1));

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

void Generator::generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                         const std::function<void(std::int32_t)>& emit) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  require(length >= 1 && length <= max_prompt_, "a prompt of {} tokens, room for {}", length, max_prompt_);
  std::vector<float> logits(static_cast<std::size_t>(model_.padded_vocab));
  std::vector<TokenChance> scratch(logits.size());
  const RngKey key = rng_stream(options.seed, "generate");

  forward(prompt, 0);
  const std::int64_t end = length + std::min(options.max_new_tokens, max_tokens_ - length);
  for (std::int64_t position = length; position < end; ++position) {
    ops_.to_host(logits_, std::as_writable_bytes(std::span(logits)));
    const std::int32_t token = sample_token(std::span(logits).first(static_cast<std::size_t>(model_.vocab)),
                                            options.sampling, key, static_cast<std::uint64_t>(position), scratch);
    if (token == options.stop) return;
    emit(token);
    if (position + 1 < end) forward(std::span(&token, 1), position);
  }
}

}  // namespace tera
