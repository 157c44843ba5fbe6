#include "tera/train/need_less.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/config/resolve.h"
#include "tera/train/levers.h"
#include "tera/train/world_plan.h"

namespace tera {
namespace {

constexpr double least_saved = 0.02;       // of a plan, to be worth naming
constexpr std::size_t enough_pairs = 3;    // that fit
constexpr std::size_t most_too_large = 4;  // that are named

// A change, or two, with what was rehearsed.
struct Found {
  LeverKind kind{};  // of two, the second's
  std::string words;
  Setup setup;
  std::size_t bytes = 0;    // of the largest rank
  std::size_t on_host = 0;  // activations that wait there, of the rank with most of them

  int world() const { return setup.parallel.mesh.world; }
  double over(double size) const { return static_cast<double>(bytes) / size; }
};

// A rehearsal takes its time for each layer of each microbatch, and some for itself.
std::int64_t cost_of(const Setup& setup) {
  return std::max<std::int64_t>(setup.model.num_layers * setup.batch.largest_step(), 5'000);
}

// For rehearsals: seconds, or a few times what it took to find out that it does not fit.
std::int64_t patience_with(const Setup& setup) { return std::max<std::int64_t>(300'000, 12 * cost_of(setup)); }

// None where the rules of the config, or the numbers themselves, forbid it, or where it would take too long.
std::optional<Found> rehearse(LeverKind kind, const Change& change, const WorkspaceRules& rules,
                              std::int64_t& patience) {
  try {
    Found found{kind, change.words, resolve(change.config, Purpose::plan, nullptr, change.world)};
    if (cost_of(found.setup) > patience) return std::nullopt;
    const WorldPlan plan = plan_world(found.setup, rules);
    patience -= cost_of(found.setup);
    found.bytes = plan.stages[plan.largest_stage()].memory.total();
    for (const auto& stage : plan.stages) found.on_host = std::max(found.on_host, stage.memory.offloaded_bytes());
    return found;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// On as many ranks as there are, then by bytes; those of the host count as much.
void sort_by_need(std::vector<Found>& list) {
  const auto need = [](const Found& found) { return std::tuple(found.world(), found.bytes + found.on_host); };
  std::ranges::sort(list, {}, need);
}

class Search {
 public:
  Search(const Setup& setup, const WorkspaceRules& rules, double room) : setup_(setup), rules_(rules), room_(room) {}

  bool fits(const Found& found) const { return found.over(room_) <= 1; }

  // Also those that do not help: with another they may.
  std::vector<Found> alone() {
    std::vector<Found> list;
    patience_ = patience_with(setup_);
    for (const Lever& lever : levers_of(setup_))
      if (auto found = best_of(lever)) list.push_back(*std::move(found));
    sort_by_need(list);
    return list;
  }

  // Each of those with what can be changed then, until enough fit; on so many ranks at most.
  std::vector<Found> pairs(const std::vector<Found>& alone, int largest_world) {
    std::vector<Found> list;
    largest_world_ = largest_world;
    patience_ = patience_with(setup_);
    for (const Found& first : alone) add_pairs(first, list);
    sort_by_need(list);
    return list;
  }

  // Whether sequences, and microbatches, could be so short that it fits.
  bool smaller_sizes_would_do() {
    Change change{{}, setup_.config, setup_.parallel.mesh.world};
    change.config.train.micro_batch_size = 1;
    change.config.train.seq_length = 2 * setup_.parallel.mesh.cp * setup_.parallel.mesh.tp;
    patience_ = std::numeric_limits<std::int64_t>::max();
    const auto then = rehearse({}, change, rules_, patience_);
    return then && fits(*then);
  }

 private:
  // The first value that fits, or the one that needs least.
  std::optional<Found> best_of(const Lever& lever) {
    std::optional<Found> best;
    for (const Change& change : lever.changes) {
      if (change.world > largest_world_) continue;
      auto found = rehearse(lever.kind, change, rules_, patience_);
      if (found && (!best || found->bytes < best->bytes)) best = std::move(found);
      if (best && fits(*best)) break;
    }
    return best;
  }

  void add_pairs(const Found& first, std::vector<Found>& list) {
    for (const Lever& lever : levers_of(first.setup)) {
      if (lever.kind <= first.kind) continue;  // found the other way round
      if (count_fitting(list) >= enough_pairs) return;
      auto both = best_of(lever);
      if (!both || both->over(static_cast<double>(first.bytes)) > 1 - least_saved) continue;
      both->words = fmt::format("{} and {}", first.words, both->words);
      list.push_back(*std::move(both));
    }
  }

  std::size_t count_fitting(const std::vector<Found>& list) const {
    return static_cast<std::size_t>(std::ranges::count_if(list, [&](const Found& found) { return fits(found); }));
  }

  const Setup& setup_;
  const WorkspaceRules& rules_;
  double room_;
  std::int64_t patience_ = 0;
  int largest_world_ = most_ranks;
};

// "model.offload_modules=[attn_norm] (9.50 GiB a rank, and 3.00 GiB of the host)"
std::string tell(const Found& found, const Setup& now) {
  std::string text = found.words;
  if (found.world() != now.parallel.mesh.world) text += fmt::format(" on {} ranks", found.world());
  text += fmt::format(" ({}{}", format_bytes(found.bytes), found.world() > 1 ? " a rank" : "");
  const ModelConfig &before = now.config.model, &then = found.setup.config.model;
  if (found.on_host > 0 && then.offload_modules != before.offload_modules)
    text += fmt::format(", and {} of the host", format_bytes(found.on_host));
  if (then.moe.expert_rank_capacity_factor != before.moe.expert_rank_capacity_factor)
    text += "; a step whose load exceeds it ends with an error";
  return text + ")";
}

std::vector<std::string> tell_all(const std::vector<Found>& list, const Setup& now, std::size_t most) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(list.size(), most); ++i) texts.push_back(tell(list[i], now));
  return texts;
}

// Of those that help at all, in two lists.
struct Sorted {
  std::vector<Found> fitting, too_large;
};

Sorted sort_out(const std::vector<Found>& list, const Search& search, double needed) {
  Sorted sorted;
  for (const Found& found : list)
    if (found.over(needed) <= 1 - least_saved)
      (search.fits(found) ? sorted.fitting : sorted.too_large).push_back(found);
  return sorted;
}

std::string nothing_fits(const std::vector<Found>& pairs, const Setup& setup) {
  std::string text = "no one change would do, nor any two that were tried: it takes more of them, more ";
  text += setup.config.dist.device == DeviceChoice::cuda ? "ranks or a smaller model" : "memory or a smaller model";
  const auto less = [](const Found& a, const Found& b) { return a.bytes < b.bytes; };
  if (!pairs.empty()) text += "; nearest comes " + tell(*std::ranges::min_element(pairs, less), setup);
  return text;
}

}  // namespace

std::string how_to_need_less(const Setup& setup, const WorkspaceRules& rules, double needed, double room) {
  Search search(setup, rules, room);
  const std::vector<Found> alone = search.alone();
  const Sorted ones = sort_out(alone, search, needed);
  const int ranks = setup.parallel.mesh.world;  // those that fit on no more come first
  const bool enough = !ones.fitting.empty() && ones.fitting.front().world() == ranks;
  const int largest_world = ones.fitting.empty() ? most_ranks : ranks;
  const Sorted twos = enough ? Sorted{} : sort_out(search.pairs(alone, largest_world), search, needed);

  std::vector<std::string> fitting;
  if (search.smaller_sizes_would_do())
    fitting.push_back(setup.batch.micro_batch > 1 ? "a smaller train.micro_batch_size or train.seq_length"
                                                  : "a smaller train.seq_length");
  const bool one_would_do = !fitting.empty() || !ones.fitting.empty();
  std::ranges::move(tell_all(twos.fitting, setup, enough_pairs), std::back_inserter(fitting));
  std::ranges::move(tell_all(ones.fitting, setup, ones.fitting.size()), std::back_inserter(fitting));

  std::string text = fitting.empty() ? nothing_fits(twos.too_large, setup)
                                     : fmt::format("{}it fits with {}", one_would_do ? "" : "no one change would do; ",
                                                   joined(fitting, ", or "));
  const std::vector<std::string> too_large = tell_all(ones.too_large, setup, most_too_large);
  if (!too_large.empty()) text += fmt::format("; {} needs less, but does not fit alone", joined(too_large, ", or "));
  return text;
}

}  // namespace tera
