#pragma once
// Which blocks lie on which virtual stage: the embedding on the first, the loss (with the head) on the last, layers in
// order between them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tera/pipeline/placement.h"

namespace tera {

struct StageBlocks {
  bool embedding = false;
  int first_layer = 0, layers = 0;
  int mtp_layers = 0;  // extra prediction heads, behind the last layer
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

// What the user may ask; at most one of the last three groups.
struct LayoutRequest {
  Placement placement;
  int num_layers = 0, mtp_num_layers = 0;

  // All layers of the first and of the last rank; the others share the rest evenly.
  std::optional<int> num_layers_in_first_pipeline_stage{}, num_layers_in_last_pipeline_stage{};

  // Even, with the embedding and the loss taking the place of a layer each.
  bool account_for_embedding_in_pipeline_split = false, account_for_loss_in_pipeline_split = false;

  // Megatron's layout string, or empty. See parse_layout.
  std::string pipeline_model_parallel_layout{};
};

// Throws a UserError that names the rule broken and what would be valid.
StageLayout place_layers(const LayoutRequest& request);

// E embedding, t layer, m extra prediction head, L loss; '|' ends a virtual stage (one without symbols is empty); x*n
// repeats a symbol or '|', (...)*n what is between the parentheses; commas and spaces mean nothing. "Et*2|(t*2|)*3,tL"
// has five stages of 2, 2, 2, 2 and 1 layers. Checks the form, not the number of layers and stages.
std::vector<StageBlocks> parse_layout(std::string_view layout);

}  // namespace tera
