#include "tera/parallel/stage_layout.h"

#include <fmt/core.h>

#include <algorithm>

#include "tera/base/error.h"
#include "tera/parallel/timeline.h"

namespace tera {
namespace {

bool has_end_counts(const LayoutRequest& r) {
  return r.num_layers_in_first_pipeline_stage || r.num_layers_in_last_pipeline_stage;
}
bool counts_ends_as_layers(const LayoutRequest& r) {
  return r.account_for_embedding_in_pipeline_split || r.account_for_loss_in_pipeline_split;
}

std::string divisors(int n) {
  std::string text;
  for (int i = 1; i <= n; ++i)
    if (n % i == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", i);
  return text;
}

// The layout of so many layers per virtual stage.
std::vector<StageBlocks> stages_of(const std::vector<int>& layers, int mtp_layers) {
  std::vector<StageBlocks> stages;
  int first = 0;
  for (const int here : layers) {
    stages.push_back({.first_layer = first, .layers = here});
    first += here;
  }
  stages.front().embedding = true;
  stages.back().loss = true;
  stages.back().mtp_layers = mtp_layers;
  return stages;
}

// The hint where counting the embedding or the loss or both as layers makes the split even.
std::string count_ends_hint(const LayoutRequest& r) {
  const int missing = r.placement.virtual_stages() - r.num_layers % r.placement.virtual_stages();
  if (missing > 2) return {};
  return fmt::format(
      "; or dist.account_for_embedding_in_pipeline_split=true {} dist.account_for_loss_in_pipeline_split=true, which "
      "makes it {}",
      missing == 1 ? "or" : "and", r.num_layers + missing);
}

// The hint where other numbers of layers at the ends leave an even split of the rest, with no rank above the others:
// " dist.num_layers_in_last_pipeline_stage=5, or".
std::string end_counts_hint(const LayoutRequest& r) {
  const int ranks = r.placement.stages, chunks = r.placement.chunks;
  const int unit = ranks * chunks, each = (r.num_layers + unit - 1) / unit * chunks;  // layers of a rank, rounded up
  const int last = r.num_layers - each * (ranks - 1);
  if (r.num_layers % chunks != 0 || ranks < 2) return {};
  if (last > 0) return fmt::format(" dist.num_layers_in_last_pipeline_stage={}, or", last);
  const int ends = (r.num_layers - each * (ranks - 2)) / chunks;
  if (ends < 2) return {};
  return fmt::format(" dist.num_layers_in_first_pipeline_stage={} with dist.num_layers_in_last_pipeline_stage={}, or",
                     ends / 2 * chunks, (ends + 1) / 2 * chunks);
}

// `count` stages of so many layers each, in a layout string.
std::string layout_run(int layers, int count) {
  const std::string stage = layers == 0 ? "" : layers == 1 ? "t" : fmt::format("t*{}", layers);
  if (count == 0) return {};
  if (count == 1) return stage + "|";
  return layers == 0 ? fmt::format("|*{}", count) : fmt::format("({}|)*{}", stage, count);
}

// The most even layout. The ends, which also have the embedding and the loss, have no more layers than others.
std::string example_layout(const LayoutRequest& r) {
  const int stages = r.placement.virtual_stages(), few = r.num_layers / stages, more = r.num_layers % stages;
  const int full = std::min(more, stages - 2);  // stages after the first that have one layer more
  std::string text = "E" + layout_run(more > full ? few + 1 : few, 1);
  text += layout_run(few + 1, full) + layout_run(few, stages - 2 - full);
  text += layout_run(few, 1);
  text.pop_back();  // no '|' after the last stage
  if (r.mtp_num_layers > 0) text += r.mtp_num_layers == 1 ? "m" : fmt::format("m*{}", r.mtp_num_layers);
  return text + "L";
}

std::vector<int> even(const LayoutRequest& r) {
  const int embedding = r.account_for_embedding_in_pipeline_split ? 1 : 0;
  const int loss = r.account_for_loss_in_pipeline_split ? 1 : 0;
  const int total = r.num_layers + embedding + loss, stages = r.placement.virtual_stages();
  if (total % stages != 0) {
    const bool plain = embedding + loss == 0;  // other options exclude counted ends
    fail_user(
        "{} layers{} cannot be split evenly over {} pipeline stages x {} virtual stages = {}; a product that divides "
        "{} is valid ({}), or{} dist.pipeline_model_parallel_layout{}{}",
        r.num_layers, plain ? std::string() : fmt::format(" and {} counted as layers", embedding + loss),
        r.placement.stages, r.placement.chunks, stages, total, divisors(total), plain ? end_counts_hint(r) : "",
        plain ? fmt::format(" such as '{}'", example_layout(r)) : "", count_ends_hint(r));
  }
  std::vector<int> layers(index(stages), total / stages);
  layers.front() -= embedding;
  layers.back() -= loss;
  if (layers.front() < 0 || layers.back() < 0)
    fail_user("one stage cannot hold embedding and loss counted as layers, but no layer, with {} layers", r.num_layers);
  return layers;
}

// The layers of one chunk, where a rank's chunks split its layers evenly.
int per_chunk(const LayoutRequest& r, int layers, std::string_view what) {
  if (layers % r.placement.chunks != 0)
    fail_user("{} of {} layers cannot be split evenly over its {} virtual stages; valid are multiples of {}", what,
              layers, r.placement.chunks, r.placement.chunks);
  return layers / r.placement.chunks;
}

std::vector<int> with_end_counts(const LayoutRequest& r) {
  const auto &first = r.num_layers_in_first_pipeline_stage, &last = r.num_layers_in_last_pipeline_stage;
  const int ends = (first ? 1 : 0) + (last ? 1 : 0), between = r.placement.stages - ends;
  const int rest = r.num_layers - first.value_or(0) - last.value_or(0);
  if (first.value_or(0) < 0 || last.value_or(0) < 0 || rest < 0)
    fail_user(
        "dist.num_layers_in_first_pipeline_stage {} and dist.num_layers_in_last_pipeline_stage {} do not fit into {} "
        "layers",
        first.value_or(0), last.value_or(0), r.num_layers);
  if (between < 0 || (between == 0 && rest > 0) || (between > 0 && rest % between != 0))
    fail_user(
        "of {} layers {} are left for the {} pipeline stages without a number of their own, which must share them "
        "evenly: change dist.num_layers_in_first_pipeline_stage or dist.num_layers_in_last_pipeline_stage by {}",
        r.num_layers, rest, std::max(between, 0), between > 0 ? rest % between : rest);
  const int first_chunks = per_chunk(r, first.value_or(0), "the first pipeline stage");
  const int last_chunks = per_chunk(r, last.value_or(0), "the last pipeline stage");
  const int middle_chunks = per_chunk(r, between > 0 ? rest / between : 0, "a pipeline stage");
  std::vector<int> layers;
  for (int stage = 0; stage < r.placement.virtual_stages(); ++stage) {
    const int rank = r.placement.rank_of(stage);
    const bool is_first = first && rank == 0, is_last = last && rank == r.placement.stages - 1;
    layers.push_back(is_first ? first_chunks : is_last ? last_chunks : middle_chunks);
  }
  return layers;
}

std::vector<StageBlocks> by_string(const LayoutRequest& r) {
  constexpr std::string_view key = "dist.pipeline_model_parallel_layout";
  auto stages = parse_layout(r.pipeline_model_parallel_layout);
  const int found = static_cast<int>(stages.size()), needed = r.placement.virtual_stages();
  if (found != needed)
    fail_user("{} has {} stages where {} pipeline stages x {} virtual stages = {} are needed{}", key, found,
              r.placement.stages, r.placement.chunks, needed,
              found % r.placement.stages == 0
                  ? fmt::format("; dist.virtual_pipeline_model_parallel_size={} would fit", found / r.placement.stages)
                  : std::string());
  int layers = 0, heads = 0;
  for (const auto& stage : stages) layers += stage.layers, heads += stage.mtp_layers;
  require_user(layers == r.num_layers, "{} places {} layers (t) where model.num_layers is {}", key, layers,
               r.num_layers);
  require_user(heads == r.mtp_num_layers, "{} places {} extra prediction heads (m) where model.mtp_num_layers is {}",
               key, heads, r.mtp_num_layers);
  for (const auto& stage : stages)
    require_user(stage.mtp_layers == 0 || stage.loss,
                 "{} has the loss (L) in another stage than the extra prediction heads (m), which are made behind it; "
                 "put m and L into one stage, as in ...|{}L",
                 key, heads == 1 ? "m" : fmt::format("m*{}", heads));
  return stages;
}

std::string describe(const StageBlocks& stage) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
  if (stage.embedding) add("embedding");
  if (stage.layers == 1) add(fmt::format("layer {}", stage.first_layer));
  if (stage.layers > 1) add(fmt::format("layers {}-{}", stage.first_layer, stage.first_layer + stage.layers - 1));
  if (stage.mtp_layers > 0) add(fmt::format("mtp*{}", stage.mtp_layers));
  if (stage.loss) add("loss");
  return text.empty() ? "(empty)" : text;
}

}  // namespace

StageLayout place_layers(const LayoutRequest& r) {
  require_valid(r.placement);
  require_user(r.num_layers >= 1, "model.num_layers is {} where a pipeline needs at least 1", r.num_layers);
  const bool by_text = !r.pipeline_model_parallel_layout.empty();
  const int ways = (by_text ? 1 : 0) + (has_end_counts(r) ? 1 : 0) + (counts_ends_as_layers(r) ? 1 : 0);
  require_user(
      ways <= 1,
      "only one of dist.pipeline_model_parallel_layout, dist.num_layers_in_first_pipeline_stage (or _last_) and "
      "dist.account_for_embedding_in_pipeline_split (or _loss_) can say where layers lie; {} were given",
      ways);
  if (by_text) return {r.placement, by_string(r)};
  return {r.placement, stages_of(has_end_counts(r) ? with_end_counts(r) : even(r), r.mtp_num_layers)};
}

std::string StageLayout::table() const {
  std::size_t width = 0;
  for (const auto& stage : stages) width = std::max(width, describe(stage).size());
  std::string text;
  for (int rank = 0; rank < placement.stages; ++rank) {
    std::string line = fmt::format("rank {:<4}", rank);
    for (int chunk = 0; chunk < placement.chunks; ++chunk)
      line += fmt::format("{:<{}}  ", describe(of(rank, chunk)), width);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace tera
