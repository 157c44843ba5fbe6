#pragma once
// Autoregressive generation: prefill of the prompt in one pass, then decoding a token at a time over a KV cache. A
// model may be sharded with tensor and pipeline parallelism: each rank caches the keys and values of its own layers and
// heads, the rank with the logits samples the token and broadcasts it.

#include <functional>
#include <memory>

#include "tera/config/setup.h"
#include "tera/infer/sampler.h"
#include "tera/models/build.h"
#include "tera/pipeline/pipeline.h"
#include "tera/plan/memory_plan.h"
#include "tera/train/backend.h"
#include "tera/train/rank_layout.h"

namespace tera {

struct GenerateOptions {
  SamplingOptions sampling;
  std::int64_t max_new_tokens = 100;
  std::uint64_t seed = 0;
  std::vector<std::int32_t> stop;  // tokens that end the text
};

class Generator {
 public:
  struct Capacity {
    std::int64_t max_prompt = 1, max_tokens = 1;  // tokens of the prompt, and of prompt and new tokens
    bool every_row = false;                       // logits of all rows of the prompt instead of the last
  };
  // world: the communicator of all ranks of the setup, on backend.ops; without one, this rank alone.
  Generator(const Setup& setup, Backend& backend, const Capacity& capacity, Comm* world = nullptr);

  ParamStore& params() { return params_; }  // to load weights into

  // Calls `emit` with each new token, stop token excluded. A collective call: all ranks get the same tokens.
  void generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                const std::function<void(std::int32_t)>& emit);

  // [S,padded V], the logits of a prompt, with every_row; empty on ranks other than the one with the logits.
  std::span<const float> prompt_logits(std::span<const std::int32_t> prompt);
  bool has_logits() const { return layout_.groups.rank == sampling_rank_; }

 private:
  void bind_inputs(Arena& arena);
  MicroBatch microbatch(std::int64_t tokens, std::int64_t past);
  MemoryPlan plan(const WorkspaceRules& rules);
  void bind(Backend& backend, Comm* world);
  void forward(std::span<const std::int32_t> tokens, std::int64_t past);
  std::int32_t next_token(const GenerateOptions& options, std::int64_t position);

  ModelShape model_;
  Capacity capacity_;
  RankLayout layout_;
  int sampling_rank_;  // has the logits and samples the tokens
  ParamStore params_;
  std::vector<Blocks> chunks_;
  Tensor tokens_, positions_;           // i32 [max_prompt]
  Tensor logits_;                       // f32 [1 or max_prompt,padded V], on the rank with the head
  Tensor chosen_;                       // i32 [1]: the sampled token, broadcast to all ranks
  std::vector<KvCache::Layer> layers_;  // layers of the full model; those of other ranks have no memory
  KvCache cache_;
  Stage stage_;
  PlannedMemory memory_;
  StageMemory stage_memory_;
  std::unique_ptr<Comm> alone_;  // the world of one
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<float> host_logits_;
  std::vector<TokenWeight> candidates_;
  Ops& ops_;
};

}  // namespace tera
