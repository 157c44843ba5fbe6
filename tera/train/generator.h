#pragma once
// Text from a model: the prompt in one pass, then a token at a time over a cache of keys and values. A model may be cut
// over ranks: each keeps the keys and values of its own layers and heads, the rank with the logits chooses the token
// and tells it to all.

#include <functional>
#include <memory>

#include "tera/config/setup.h"
#include "tera/models/build.h"
#include "tera/pipeline/pipeline.h"
#include "tera/train/backend.h"
#include "tera/train/memory_plan.h"
#include "tera/train/rank_layout.h"
#include "tera/train/sample_token.h"

namespace tera {

struct GenerateOptions {
  SamplingOptions sampling;
  std::int64_t max_new_tokens = 100;
  std::uint64_t seed = 0;
  std::vector<std::int32_t> stop;  // tokens that end the text
};

class Generator {
 public:
  struct Room {
    std::int64_t max_prompt = 1, max_tokens = 1;  // tokens of a prompt, and of a text in all
    bool every_row = false;                       // logits of all rows of a prompt, not of the last alone
  };
  // world: all ranks of the setup, working through backend.ops; without one, this rank alone.
  Generator(const Setup& setup, Backend& backend, const Room& room, Comm* world = nullptr);

  ParamStore& params() { return params_; }  // to load weights into

  // Calls `emit` with each new token, stop token excluded. All ranks make the same call and get the same tokens.
  void generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                const std::function<void(std::int32_t)>& emit);

  // [S,padded V] of a prompt, where every_row was asked for: on the rank that has them; the others get nothing.
  std::span<const float> prompt_logits(std::span<const std::int32_t> prompt);
  bool has_logits() const { return layout_.groups.rank == speaker_; }

 private:
  void bind_inputs(Arena& arena);
  MicroBatch microbatch(std::int64_t tokens, std::int64_t past);
  MemoryPlan plan(const WorkspaceRules& rules);
  void bind(Backend& backend, Comm* world);
  void forward(std::span<const std::int32_t> tokens, std::int64_t past);
  std::int32_t next_token(const GenerateOptions& options, std::int64_t position);

  ModelShape model_;
  Room room_;
  RankLayout layout_;
  int speaker_;  // the rank that chooses tokens
  ParamStore params_;
  std::vector<Blocks> chunks_;
  Tensor tokens_, positions_;           // i32 [max_prompt]
  Tensor logits_;                       // f32 [1,padded V], or a row for each of a prompt; where the head is
  Tensor chosen_;                       // i32 [1]: the token that all ranks go on with
  std::vector<KvCache::Layer> layers_;  // of the whole model; those of other ranks have no memory
  KvCache cache_;
  Stage stage_;
  PlannedMemory memory_;
  StageMemory stage_memory_;
  std::unique_ptr<Comm> alone_;  // the world of one
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<float> host_logits_;
  std::vector<TokenChance> chances_;
  Ops& ops_;
};

}  // namespace tera
