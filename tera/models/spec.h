#pragma once
// A model is a list of specs: embedding, layers, head, and layers that predict further ahead. make_spec turns the
// resolved shape into such a list, with the names of its family (gpt.cpp, llama.cpp); build.h turns any list into
// blocks.

#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "tera/config/setup.h"
#include "tera/nn/attention.h"
#include "tera/nn/embedding.h"
#include "tera/nn/head.h"
#include "tera/nn/mla.h"
#include "tera/nn/mlp.h"
#include "tera/nn/moe.h"
#include "tera/nn/mtp.h"

namespace tera {

struct LayerSpec {
  std::variant<AttentionSpec, MlaSpec> mixer;
  std::variant<MlpSpec, MoeSpec> ffn;
};

// A layer that predicts further ahead, and the head behind it, whose weights are those of the model's head.
struct MtpSpec {
  MtpInputSpec input;
  LayerSpec layer;
  HeadSpec head;
};

// Layers whose forward is played again in B.
struct RecomputeRule {
  std::int64_t unit = 0;                                                     // layers at a time; 0: none
  std::int64_t layers_per_chunk = std::numeric_limits<std::int64_t>::max();  // the first ones of each chunk
};

struct ModelSpec {
  EmbeddingSpec embedding;
  std::vector<LayerSpec> layers;
  HeadSpec head;
  std::vector<MtpSpec> mtp;  // by depth
  bool tied = false;
  RecomputeRule recompute;
};

// seed: of dropout.
ModelSpec make_spec(const ModelShape& model, std::uint64_t seed);

}  // namespace tera
