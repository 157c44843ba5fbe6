#pragma once
// Text from a model: the prompt in one pass, then a token at a time over a cache of keys and values.

#include <functional>
#include <memory>

#include "tera/config/setup.h"
#include "tera/models/build.h"
#include "tera/pipeline/pipeline.h"
#include "tera/train/backend.h"
#include "tera/train/memory_plan.h"
#include "tera/train/sample_token.h"

namespace tera {

struct GenerateOptions {
  SamplingOptions sampling;
  std::int64_t max_new_tokens = 100;
  std::uint64_t seed = 0;
  std::int32_t stop = -1;  // token that ends the text; negative: none
};

class Generator {
 public:
  // Room for prompts of up to `max_prompt` tokens and `max_tokens` in all.
  Generator(const Setup& setup, Backend& backend, std::int64_t max_prompt, std::int64_t max_tokens);

  ParamStore& params() { return params_; }  // to load weights into

  // Calls `emit` with each new token, stop token excluded.
  void generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                const std::function<void(std::int32_t)>& emit);

 private:
  void bind_inputs(Arena& arena);
  MicroBatch microbatch(std::int64_t tokens, std::int64_t past);
  MemoryPlan plan(const WorkspaceRules& rules);
  void forward(std::span<const std::int32_t> tokens, std::int64_t past);

  ModelShape model_;
  std::int64_t max_prompt_, max_tokens_;
  ParamStore params_;
  Blocks blocks_;
  Tensor tokens_, positions_;  // i32 [max_prompt]
  Tensor logits_;              // f32 [1,padded V]
  std::vector<KvCache::Layer> layers_;
  KvCache cache_;
  Stage stage_;
  PlannedMemory memory_;
  StageMemory stage_memory_;
  std::unique_ptr<Pipeline> pipeline_;
  Ops& ops_;
};

}  // namespace tera
