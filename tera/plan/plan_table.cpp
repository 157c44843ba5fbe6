#include "tera/plan/plan_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "tera/base/gpu_limits.h"
#include "tera/base/joined.h"
#include "tera/config/family.h"
#include "tera/hf/hf_export.h"
#include "tera/plan/memory_advisor.h"
#include "tera/train/backend.h"

namespace tera {
namespace {

constexpr int name_width = 34, bar_width = 24;

// A long list shows its first and its last lines.
bool is_shown(std::size_t line, std::size_t lines, std::size_t max_lines) {
  const std::size_t last = max_lines / 4;
  return lines <= max_lines || line + last + 1 < max_lines || line + last >= lines;
}

std::string bar(std::size_t bytes, std::size_t total) {
  const auto full = static_cast<int>(
      static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(total, 1)) * bar_width + 0.5);
  std::string text;
  for (int i = 0; i < full; ++i) text += "█";
  return text;
}

// An item of the plan, or the items of one kind of all chunks of a rank added up.
struct Row {
  std::string name;
  std::size_t bytes = 0, copies = 0;
  Arena::BytesByTag tags;  // sizes in all copies
};

std::vector<Row> rows_of(std::span<const MemoryItem> items) {
  std::vector<Row> rows;
  for (const auto& item : items) {
    const std::string name = item.name.substr(0, item.name.find(", chunk "));
    if (rows.empty() || rows.back().name != name) rows.push_back({.name = name});
    rows.back().bytes += item.bytes * item.copies;
    rows.back().copies += item.copies;
    for (const auto& [tag, bytes] : item.tags) rows.back().tags[tag] += bytes * item.copies;
  }
  return rows;
}

std::vector<std::pair<std::string, std::size_t>> by_size(const Arena::BytesByTag& tags) {
  std::vector<std::pair<std::string, std::size_t>> sorted;
  for (const auto& [tag, bytes] : tags)
    if (bytes > 0) sorted.emplace_back(tag, bytes);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

std::string with_copies(const Row& row) {
  return row.copies > 1 ? fmt::format("{} x {}", row.name, row.copies) : row.name;
}

std::string host_lines(const Row& row) {
  std::string text = fmt::format("  {:<{}} {:>11}\n", with_copies(row), name_width - 2, format_bytes(row.bytes));
  for (const auto& [tag, size] : by_size(row.tags))
    text += fmt::format("    {:<{}} {:>11}\n", tag, name_width - 4, format_bytes(size));
  return text;
}

std::string row_lines(const Row& row, std::size_t total) {
  const std::string name = with_copies(row);
  std::string text =
      fmt::format("{:<{}} {:>11}  {:>5.1f} %  {}\n", name, name_width, format_bytes(row.bytes),
                  100.0 * static_cast<double>(row.bytes) / static_cast<double>(total), bar(row.bytes, total));
  if (row.tags.size() < 2) return text;
  for (const auto& [tag, size] : by_size(row.tags))
    text += fmt::format("  {:<{}} {:>11}\n", tag, name_width - 2, format_bytes(size));
  return text;
}

std::string head_line(const Setup& setup, const WorldPlan& plan) {
  const BatchShape& batch = setup.batch;
  return fmt::format(
      "{} {}: {} layers, hidden {}, {} parameters\nbatch: {} x {} tokens, {} microbatch{} of {}; {} on {}\n",
      setup.config.run.name, family_of(setup.model).name, setup.model.num_layers, setup.model.hidden, plan.parameters,
      batch.global_batch, batch.seq_length, batch.num_microbatches, batch.num_microbatches == 1 ? "" : "es",
      batch.micro_batch, name_of(setup.config.mixed_precision.precision),
      setup.config.dist.device == DeviceChoice::cuda ? "a GPU" : "the CPU");
}

std::size_t bytes_kept_free(const Setup& setup) {
  return setup.config.dist.device == DeviceChoice::cuda ? gpu_reserved_bytes : 0;
}

std::string_view describe(Sharding sharding) {
  switch (sharding) {
    case Sharding::no_shard: return "nothing sharded";
    case Sharding::optim: return "optimizer sharded";
    case Sharding::optim_grads: return "optimizer and gradients sharded";
    case Sharding::optim_grads_params: return "optimizer, gradients and weights sharded";
  }
  return "";
}

}  // namespace

bool fits(const StageRehearsal& stage, double available) {
  return static_cast<double>(stage.memory.total()) <= available;
}

bool fits(const WorldPlan& plan, double available) { return fits(plan.stages[plan.largest_stage()], available); }

std::string describe_context(const ParallelShape& parallel) {
  const char* const degrees = parallel.dynamic_cp ? "1 to " : "";
  return fmt::format("cp {}{} ({}{})", degrees, parallel.mesh.cp, name_of(parallel.cp_comm),
                     parallel.dynamic_cp ? ", dynamic" : "");
}

std::string describe_experts(const MeshSizes& mesh) {
  const MeshPlan plan(mesh);
  return fmt::format("etp {} x ep {} x edp {}", plan.sizes().etp, mesh.ep, plan.edp());
}

namespace {

std::string layout_line(const ParallelShape& parallel, bool has_experts) {
  const MeshSizes& mesh = parallel.mesh;
  std::string text = fmt::format("{} ranks: tp {}", mesh.world, mesh.tp);
  if (parallel.sequence_parallel) text += " with sequence parallelism";
  if (mesh.cp > 1) text += fmt::format(" x {}", describe_context(parallel));
  text += fmt::format(" x pp {}", mesh.pp);
  if (mesh.pp > 1) text += fmt::format(" ({}", name_of(parallel.schedule));
  if (parallel.chunks > 1) text += fmt::format(", {} chunks a rank", parallel.chunks);
  if (mesh.pp > 1) text += ")";
  text += fmt::format(" x dp {}", parallel.dp);
  if (parallel.replicas() > 1) text += fmt::format(", {}", describe(parallel.sharding));
  if (has_experts) text += fmt::format("; experts: {}", describe_experts(mesh));
  return text + "\n";
}

std::string hf_line(const Setup& setup) {
  const std::string why = why_no_hf_form(setup.model, setup.config.model);
  return why.empty() ? "" : fmt::format("this model has no Hugging Face form: {}\n", why);
}

// Dynamic context parallelism chooses degrees per step; the plan is of the largest step.
std::string dynamic_line(const Setup& setup) {
  if (!setup.parallel.dynamic_cp) return "";
  return fmt::format(
      "dynamic context parallelism: documents are dealt anew, {} microbatches a step at most, each over {} ranks; "
      "memory, traffic and FLOPs are those of the most microbatches, all over {}\n",
      setup.batch.max_dynamic_microbatches, joined(setup.parallel.context_degrees(), " or "), setup.parallel.mesh.cp);
}

constexpr const char* stage_form = "{:>6} {:>13} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}";

// The columns of a stage.
struct Columns {
  std::size_t weights = 0, gradients = 0, optimizer = 0, activations = 0, other = 0;
};

Columns columns(const MemoryPlan& plan) {
  Columns sum;
  for (const auto& item : plan.items()) {
    const auto is = [&](std::string_view name) { return item.name == name; };
    const bool activations = item.name.starts_with("activations") || item.name.starts_with("offload buffers") ||
                             is("pipeline buffers") || is("recompute");
    std::size_t& column = is("weights")                             ? sum.weights
                          : is("gradients")                         ? sum.gradients
                          : is("optimizer") || is("master weights") ? sum.optimizer
                          : activations                             ? sum.activations
                                                                    : sum.other;
    column += item.bytes * item.copies;
  }
  return sum;
}

// The blocks of each stage; of a long pipeline the first and the last stages.
std::string layer_lines(const StageLayout& layout) {
  constexpr std::size_t max_lines = 8;
  constexpr std::string_view rank_word = "rank ";  // rank of the pipeline, here a stage of the world
  const std::string table = layout.table();
  const auto ranks = static_cast<std::size_t>(layout.placement.stages);
  std::string text;
  for (std::size_t rank = 0, begin = 0; rank < ranks; ++rank) {
    const std::size_t end = table.find('\n', begin) + 1;
    const bool shown = is_shown(rank, ranks, max_lines);
    if (shown) text += fmt::format("stage {}", table.substr(begin + rank_word.size(), end - begin - rank_word.size()));
    if (!shown && is_shown(rank + 1, ranks, max_lines)) text += "...\n";
    begin = end;
  }
  return text;
}

// A stage's line without its number.
std::string stage_line(const StageRehearsal& stage, std::optional<double> device_bytes) {
  const Columns sum = columns(stage.memory);
  std::string line =
      fmt::format(stage_form, stage.layers, stage.parameters, format_bytes(sum.weights), format_bytes(sum.gradients),
                  format_bytes(sum.optimizer), format_bytes(sum.activations), format_bytes(sum.other),
                  format_bytes(stage.memory.total()));
  if (device_bytes) line += fits(stage, *device_bytes) ? "  fits" : "  does not fit";
  return line;
}

// Neighbouring stages with equal numbers share a line. The largest is always shown.
std::string stage_lines(const WorldPlan& plan, std::optional<double> device_bytes) {
  constexpr std::size_t max_lines = 24;
  const std::size_t largest = plan.stages[plan.largest_stage()].memory.total();
  std::vector<std::string> lines;
  std::vector<bool> is_largest;
  for (std::size_t first = 0, last = 0; first < plan.stages.size(); first = ++last) {
    const StageRehearsal& stage = plan.stages[first];
    const std::string line = stage_line(stage, device_bytes);
    while (last + 1 < plan.stages.size() && stage_line(plan.stages[last + 1], device_bytes) == line) ++last;
    is_largest.push_back(stage.memory.total() == largest);
    lines.push_back(fmt::format("{:<7}{}{}\n",
                                first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last), line,
                                is_largest.back() ? "  largest" : ""));
  }
  std::string text = fmt::format("{:<7}", "stage") +
                     fmt::format(stage_form, "layers", "parameters", "weights", "gradients", "optimizer", "activations",
                                 "other", "total") +
                     "\n";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool shown = is_largest[i] || is_shown(i, lines.size(), max_lines);
    if (shown) text += lines[i];
    if (!shown && (is_largest[i + 1] || is_shown(i + 1, lines.size(), max_lines))) text += "...\n";
  }
  return text;
}

// device_bytes: usable_memory(), without what is kept free.
std::string fit_line(const Setup& setup, const WorldPlan& plan, double device_bytes) {
  const std::size_t kept = bytes_kept_free(setup);
  const auto device = static_cast<std::size_t>(device_bytes);
  const std::string size = kept == 0
                               ? format_bytes(device)
                               : fmt::format("{} ({} less {} for the driver and its libraries)", format_bytes(device),
                                             format_bytes(device + kept), format_bytes(kept));
  const std::size_t largest = plan.largest_stage(), total = plan.stages[largest].memory.total();
  const auto count = std::count_if(plan.stages.begin(), plan.stages.end(),
                                   [&](const StageRehearsal& stage) { return fits(stage, device_bytes); });
  if (fits(plan, device_bytes))
    return fmt::format("fits {}: stage {} is the largest and leaves {}\n", size, largest, format_bytes(device - total));
  return fmt::format("does not fit {}: {} of {} stages do; stage {} is the largest and needs {} more; {}\n", size,
                     count, plan.stages.size(), largest, format_bytes(total - device),
                     advise_on_memory(setup, *make_workspace_rules(setup), static_cast<double>(total), device_bytes));
}

// The most that a rank of any stage sends to each group.
std::string traffic_lines(const WorldPlan& plan) {
  std::string text = fmt::format("{:<{}} {:>11} {:>8} {:>14} {:>13}\n", "sent by a rank in a step, at most", name_width,
                                 "bytes", "calls", "ranks in group", "largest call");
  for (std::size_t i = 0; i < plan.stages.front().groups.size(); ++i) {
    const auto less = [i](const auto& a, const auto& b) {
      return a.groups[i].traffic.bytes < b.groups[i].traffic.bytes;
    };
    const auto& [name, ranks, traffic] = std::max_element(plan.stages.begin(), plan.stages.end(), less)->groups[i];
    if (ranks > 1 && traffic.calls > 0)
      text += fmt::format("  {:<{}} {:>11} {:>8} {:>14} {:>13}\n", name, name_width - 2,
                          format_bytes(static_cast<std::size_t>(traffic.bytes)), traffic.calls, ranks,
                          format_bytes(traffic.largest));
  }
  return text;
}

// The expert capacity of a rank, and the bytes it sends to experts.
std::string expert_lines(const Setup& setup, const WorldPlan& plan) {
  const ExpertCapacity& capacity = *plan.experts;
  std::string text = fmt::format(
      "experts: {} of {} on a rank, with room for {} rows in a layer and microbatch; {} come when the load is even, {} "
      "at most\n",
      capacity.experts, setup.model.moe->experts, capacity.rows, capacity.balanced, capacity.worst_case);
  double sent = 0;
  for (const StageRehearsal& stage : plan.stages) {
    double of_stage = 0;
    for (const auto& [name, ranks, traffic] : stage.groups)
      if (name == "ep" || name == "etp" || name == "etp_ep") of_stage += traffic.bytes;
    sent = std::max(sent, of_stage);
  }
  if (sent > 0)
    text += fmt::format("to experts and back a rank sends {} in a step when the load is even ({})\n",
                        format_bytes(static_cast<std::size_t>(sent)), name_of(setup.model.moe->dispatcher));
  return text;
}

std::string flops_line(const Setup& setup, const WorldPlan& plan) {
  const double flops = plan.total_flops(setup.parallel);
  const bool large = flops >= 1e16;
  return fmt::format("{:.3f} {} a step in matrix products and attention{}\n", flops / (large ? 1e15 : 1e12),
                     large ? "PFLOP" : "TFLOP", setup.parallel.mesh.world > 1 ? ", on all ranks" : "");
}

std::string item_lines(const MemoryPlan& memory) {
  const std::size_t total = memory.total();
  std::string text;
  for (const Row& row : rows_of(memory.items()))
    if (row.bytes > 0) text += row_lines(row, total);
  text += fmt::format("{:<{}} {:>11}  {} bytes\n", "total", name_width, format_bytes(total), total);
  const auto on_host = [&](std::size_t bytes, std::string_view purpose) {
    if (bytes > 0)
      text += fmt::format("{:<{}} {:>11}  {} bytes of the host, for {}\n", "and", name_width, format_bytes(bytes),
                          bytes, purpose);
  };
  on_host(memory.offloaded_bytes(), "activations that wait there");
  for (const Row& row : rows_of(memory.host_items()))
    if (row.bytes > 0) text += host_lines(row);
  on_host(memory.saving_bytes(), "asynchronous saving");
  return text;
}

}  // namespace

double usable_memory(const Setup& setup, double device_bytes) {
  return std::max(device_bytes - static_cast<double>(bytes_kept_free(setup)), 0.0);
}

std::string plan_table(const Setup& setup, const WorldPlan& plan, std::optional<double> device_bytes) {
  if (device_bytes) device_bytes = usable_memory(setup, *device_bytes);
  const ParallelShape& parallel = setup.parallel;
  const StageRehearsal& largest = plan.stages[plan.largest_stage()];
  std::string text = head_line(setup, plan);
  if (parallel.mesh.world > 1) text += layout_line(parallel, plan.experts.has_value());
  text += dynamic_line(setup);
  text += hf_line(setup);
  text += "\n";
  if (parallel.mesh.pp > 1) {
    text += layer_lines(plan.layout) + "\n" + stage_lines(plan, device_bytes) + "\n";
    text += fmt::format("a rank of stage {}:\n", plan.largest_stage());
  }
  text += item_lines(largest.memory) + "\n";
  if (device_bytes) text += fit_line(setup, plan, *device_bytes);
  text += flops_line(setup, plan);
  if (plan.experts) text += expert_lines(setup, plan);
  if (parallel.mesh.pp > 1)
    text += fmt::format("bubble: with {} microbatches ranks wait {:.1f} % of the time if all chunks take as long\n",
                        setup.batch.largest_step(), 100 * plan.bubble);
  if (parallel.mesh.world > 1) text += "\n" + traffic_lines(plan);
  return text;
}

}  // namespace tera
