#pragma once
// The pipeline layout: blocks per virtual stage. The embedding is on the first, the loss (with the head) on the last,
// layers in order between them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tera/parallel/placement.h"

namespace tera {

struct StageBlocks {
  bool embedding = false;
  int first_layer = 0, layers = 0;
  int mtp_layers = 0;  // multi-token prediction (MTP) layers, after the last layer
  bool loss = false;

  bool empty() const { return !embedding && layers == 0 && mtp_layers == 0 && !loss; }
  bool operator==(const StageBlocks&) const = default;
};

struct StageLayout {
  Placement placement;
  std::vector<StageBlocks> stages;  // per virtual stage

  const StageBlocks& of(int rank, int chunk) const {
    return stages[static_cast<std::size_t>(placement.virtual_stage(rank, chunk))];
  }
  std::string table() const;  // one line per rank, one column per chunk
};

// The user's options; at most one of the last three groups is given.
struct LayoutRequest {
  Placement placement;
  int num_layers = 0, mtp_num_layers = 0;

  // Numbers of layers of the first and the last rank; the others split the rest evenly.
  std::optional<int> num_layers_in_first_pipeline_stage{}, num_layers_in_last_pipeline_stage{};

  // An even split that counts the embedding or the loss as a layer.
  bool account_for_embedding_in_pipeline_split = false, account_for_loss_in_pipeline_split = false;

  // Megatron's layout string (parse_layout), or empty.
  std::string pipeline_model_parallel_layout{};
};

// UserError with the rule that is broken and what would be valid.
StageLayout place_layers(const LayoutRequest& request);

// E embedding, t layer, m MTP layer, L loss; '|' ends a virtual stage (one without symbols is empty); x*n
// repeats a symbol or '|', (...)*n what is between the parentheses; commas and spaces mean nothing. "Et*2|(t*2|)*3,tL"
// has five stages of 2, 2, 2, 2 and 1 layers. Checks the form, not the number of layers and stages.
std::vector<StageBlocks> parse_layout(std::string_view layout);

}  // namespace tera
