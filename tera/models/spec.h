#pragma once
// A model is a list of specs: embedding, layers, head, and MTP layers. The model's family turns the resolved shape into
// such a list (families/); build.h turns any list into blocks.

#include <cstdint>
#include <limits>
#include <vector>

#include "tera/config/setup.h"
#include "tera/nn/embeddings/embedding.h"
#include "tera/nn/heads/head.h"
#include "tera/nn/heads/mtp.h"
#include "tera/nn/sublayer.h"

namespace tera {

struct LayerSpec {
  std::vector<SublayerSpec> sublayers;
};

// The layer of one depth of multi-token prediction, and the head after it, whose weights are those of the model's head.
struct MtpSpec {
  MtpInputSpec input;
  LayerSpec layer;
  HeadSpec head;
};

// Full activation recomputation: layers whose forward runs again in B.
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

// What the model's family makes of it.
ModelSpec make_spec(const ModelShape& model, std::uint64_t dropout_seed);
// A decoder whose layers are attention or MLA, then a feed-forward or experts, as the shape says.
ModelSpec make_decoder_spec(const ModelShape& model, std::uint64_t dropout_seed);

}  // namespace tera
