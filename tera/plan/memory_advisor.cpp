#include "tera/plan/memory_advisor.h"

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
#include "tera/plan/memory_knobs.h"
#include "tera/plan/world_plan.h"
#include "tera/setup/resolve.h"

namespace tera {
namespace {

constexpr double min_saving = 0.02;       // fraction of a plan's bytes that makes a change worth naming
constexpr std::size_t enough_pairs = 3;   // pairs that fit end the search
constexpr std::size_t max_too_large = 4;  // named changes that do not fit alone

// A change, or a pair of them, with the result of its rehearsal.
struct Candidate {
  KnobKind kind{};  // kind of the change; for a pair, the second's
  std::string words;
  Setup setup;
  std::size_t bytes = 0;    // memory of the largest rank
  std::size_t on_host = 0;  // offloaded activations, of the rank with most of them

  int world() const { return setup.parallel.mesh.world; }
  double over(double size) const { return static_cast<double>(bytes) / size; }
};

// A rehearsal's time grows with layers times microbatches, above a minimum.
std::int64_t cost_of(const Setup& setup) {
  return std::max<std::int64_t>(setup.model.num_layers * setup.batch.largest_step(), 5'000);
}

// The cost that rehearsals may add up to: seconds, or a few times that of the plan that did not fit.
std::int64_t search_budget_for(const Setup& setup) { return std::max<std::int64_t>(300'000, 12 * cost_of(setup)); }

// None where the rules of the config or the sizes forbid the change, or its rehearsal exceeds the search budget.
std::optional<Candidate> rehearse(KnobKind kind, const Change& change, const WorkspaceRules& rules,
                                  std::int64_t& search_budget) {
  try {
    Candidate found{kind, change.words, resolve(change.config, Purpose::plan, nullptr, change.world)};
    if (cost_of(found.setup) > search_budget) return std::nullopt;
    const WorldPlan plan = plan_world(found.setup, rules);
    search_budget -= cost_of(found.setup);
    found.bytes = plan.stages[plan.largest_stage()].memory.total();
    for (const auto& stage : plan.stages) found.on_host = std::max(found.on_host, stage.memory.offloaded_bytes());
    return found;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// Sorts by number of ranks, then by bytes, of device and host alike.
void sort_by_need(std::vector<Candidate>& list) {
  const auto need = [](const Candidate& found) { return std::tuple(found.world(), found.bytes + found.on_host); };
  std::ranges::sort(list, {}, need);
}

class Search {
 public:
  Search(const Setup& setup, const WorkspaceRules& rules, double available)
      : setup_(setup), rules_(rules), available_(available) {}

  bool fits(const Candidate& found) const { return found.over(available_) <= 1; }

  // Single changes, also those that do not help: in a pair they may.
  std::vector<Candidate> alone() {
    std::vector<Candidate> list;
    search_budget_ = search_budget_for(setup_);
    for (const Knob& knob : knobs_of(setup_))
      if (auto found = best_of(knob)) list.push_back(*std::move(found));
    sort_by_need(list);
    return list;
  }

  // Each single change followed by each that is possible then, until enough fit; on at most largest_world ranks.
  std::vector<Candidate> pairs(const std::vector<Candidate>& alone, int largest_world) {
    std::vector<Candidate> list;
    largest_world_ = largest_world;
    search_budget_ = search_budget_for(setup_);
    for (const Candidate& first : alone) add_pairs(first, list);
    sort_by_need(list);
    return list;
  }

  // Whether sequences, and microbatches, could be so short that it fits.
  bool smaller_sizes_would_do() {
    Change change{{}, setup_.config, setup_.parallel.mesh.world};
    change.config.train.micro_batch_size = 1;
    change.config.train.seq_length = 2 * setup_.parallel.mesh.cp * setup_.parallel.mesh.tp;
    search_budget_ = std::numeric_limits<std::int64_t>::max();
    const auto then = rehearse({}, change, rules_, search_budget_);
    return then && fits(*then);
  }

 private:
  // The first value that fits, or the one that needs least.
  std::optional<Candidate> best_of(const Knob& knob) {
    std::optional<Candidate> best;
    for (const Change& change : knob.changes) {
      if (change.world > largest_world_) continue;
      auto found = rehearse(knob.kind, change, rules_, search_budget_);
      if (found && (!best || found->bytes < best->bytes)) best = std::move(found);
      if (best && fits(*best)) break;
    }
    return best;
  }

  void add_pairs(const Candidate& first, std::vector<Candidate>& list) {
    for (const Knob& knob : knobs_of(first.setup)) {
      if (knob.kind <= first.kind) continue;  // the pair exists in the other order
      if (count_fitting(list) >= enough_pairs) return;
      auto both = best_of(knob);
      if (!both || both->over(static_cast<double>(first.bytes)) > 1 - min_saving) continue;
      both->words = fmt::format("{} and {}", first.words, both->words);
      list.push_back(*std::move(both));
    }
  }

  std::size_t count_fitting(const std::vector<Candidate>& list) const {
    return static_cast<std::size_t>(std::ranges::count_if(list, [&](const Candidate& found) { return fits(found); }));
  }

  const Setup& setup_;
  const WorkspaceRules& rules_;
  double available_;
  std::int64_t search_budget_ = 0;
  int largest_world_ = max_ranks;
};

// "model.offload_modules=[attn_norm] (9.50 GiB a rank, and 3.00 GiB of the host)"
std::string describe(const Candidate& found, const Setup& now) {
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

std::vector<std::string> describe_all(const std::vector<Candidate>& list, const Setup& now, std::size_t max_texts) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(list.size(), max_texts); ++i) texts.push_back(describe(list[i], now));
  return texts;
}

// The candidates that help at all, in two lists.
struct Sorted {
  std::vector<Candidate> fitting, too_large;
};

Sorted sort_out(const std::vector<Candidate>& list, const Search& search, double needed) {
  Sorted sorted;
  for (const Candidate& found : list)
    if (found.over(needed) <= 1 - min_saving) (search.fits(found) ? sorted.fitting : sorted.too_large).push_back(found);
  return sorted;
}

std::string nothing_fits(const std::vector<Candidate>& pairs, const Setup& setup) {
  std::string text = "no one change would do, nor any two that were tried: it takes more of them, more ";
  text += setup.config.dist.device == DeviceChoice::cuda ? "ranks or a smaller model" : "memory or a smaller model";
  const auto less = [](const Candidate& a, const Candidate& b) { return a.bytes < b.bytes; };
  if (!pairs.empty()) text += "; nearest comes " + describe(*std::ranges::min_element(pairs, less), setup);
  return text;
}

}  // namespace

std::string advise_on_memory(const Setup& setup, const WorkspaceRules& rules, double needed, double available) {
  Search search(setup, rules, available);
  const std::vector<Candidate> alone = search.alone();
  const Sorted singles = sort_out(alone, search, needed);
  const int ranks = setup.parallel.mesh.world;  // candidates that fit on this many come first
  const bool enough = !singles.fitting.empty() && singles.fitting.front().world() == ranks;
  const int largest_world = singles.fitting.empty() ? max_ranks : ranks;
  const Sorted pairs = enough ? Sorted{} : sort_out(search.pairs(alone, largest_world), search, needed);

  std::vector<std::string> fitting;
  if (search.smaller_sizes_would_do())
    fitting.push_back(setup.batch.micro_batch > 1 ? "a smaller train.micro_batch_size or train.seq_length"
                                                  : "a smaller train.seq_length");
  const bool one_would_do = !fitting.empty() || !singles.fitting.empty();
  std::ranges::move(describe_all(pairs.fitting, setup, enough_pairs), std::back_inserter(fitting));
  std::ranges::move(describe_all(singles.fitting, setup, singles.fitting.size()), std::back_inserter(fitting));

  std::string text = fitting.empty() ? nothing_fits(pairs.too_large, setup)
                                     : fmt::format("{}it fits with {}", one_would_do ? "" : "no one change would do; ",
                                                   joined(fitting, ", or "));
  const std::vector<std::string> too_large = describe_all(singles.too_large, setup, max_too_large);
  if (!too_large.empty()) text += fmt::format("; {} needs less, but does not fit alone", joined(too_large, ", or "));
  return text;
}

}  // namespace tera
