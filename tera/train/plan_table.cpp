#include "tera/train/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tera {
namespace {

constexpr int name_width = 34, bar_width = 24;

std::vector<std::pair<std::string, std::size_t>> by_size(const Arena::BytesByTag& tags) {
  std::vector<std::pair<std::string, std::size_t>> sorted;
  for (const auto& [tag, bytes] : tags)
    if (bytes > 0) sorted.emplace_back(tag, bytes);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

std::string bar(std::size_t bytes, std::size_t total) {
  const auto full = static_cast<int>(
      static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(total, 1)) * bar_width + 0.5);
  std::string text;
  for (int i = 0; i < full; ++i) text += "█";
  return text;
}

std::string item_rows(const MemoryItem& item, std::size_t total) {
  const std::size_t bytes = item.bytes * item.copies;
  const std::string name = item.copies > 1 ? fmt::format("{} x {}", item.name, item.copies) : item.name;
  std::string text = fmt::format("{:<{}} {:>11}  {:>5.1f} %  {}\n", name, name_width, format_bytes(bytes),
                                 100.0 * static_cast<double>(bytes) / static_cast<double>(total), bar(bytes, total));
  if (item.tags.size() < 2) return text;
  for (const auto& [tag, size] : by_size(item.tags))
    text += fmt::format("  {:<{}} {:>11}\n", tag, name_width - 2, format_bytes(size * item.copies));
  return text;
}

}  // namespace

std::string plan_table(const Setup& setup, const MemoryPlan& plan, const TrainingStep& step) {
  const std::size_t total = plan.total();
  std::string text = fmt::format(
      "{} {}: {} layers, hidden {}, {} parameters\nbatch: {} x {} tokens, {} microbatch{} of {}; {} on {}\n\n",
      setup.config.run.name, name_of(setup.model.arch), setup.model.num_layers, setup.model.hidden,
      step.count_parameters(), setup.batch.global_batch, setup.batch.seq_length, setup.batch.num_microbatches,
      setup.batch.num_microbatches == 1 ? "" : "es", setup.batch.micro_batch,
      name_of(setup.config.mixed_precision.precision),
      setup.config.dist.device == DeviceChoice::cuda ? "a GPU" : "the CPU");
  for (const auto& item : plan.items())
    if (item.bytes > 0) text += item_rows(item, total);
  text += fmt::format("{:<{}} {:>11}  {} bytes\n\n", "total", name_width, format_bytes(total), total);
  text += fmt::format("{:.3f} TFLOP a step in matrix products and attention\n", step.planned_flops() / 1e12);
  return text;
}

std::string plan_json(const Setup& setup, const MemoryPlan& plan, const TrainingStep& step) {
  nlohmann::json items = nlohmann::json::array();
  for (const auto& item : plan.items())
    items.push_back(
        {{"name", item.name}, {"bytes", item.bytes * item.copies}, {"copies", item.copies}, {"tags", item.tags}});
  const nlohmann::json json{{"name", setup.config.run.name},
                            {"parameters", step.count_parameters()},
                            {"items", std::move(items)},
                            {"total_bytes", plan.total()},
                            {"flops_per_step", step.planned_flops()}};
  return json.dump(1) + "\n";
}

}  // namespace tera
