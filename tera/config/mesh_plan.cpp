#include "tera/config/mesh_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr auto tp_key = "tensor_model_parallel_size";
constexpr auto cp_key = "context_parallel_size";
constexpr auto pp_key = "pipeline_model_parallel_size";
constexpr auto ep_key = "expert_model_parallel_size";
constexpr auto etp_key = "expert_tensor_parallel_size";

constexpr int most_ranks = 1 << 20;  // the product of three fits 64 bits

int resolved_etp(const MeshSizes& sizes) { return sizes.etp == 0 ? sizes.tp : sizes.etp; }

// "2 or 4": the nearest values below and above that are valid, in [1, most].
template <class Valid>
std::string nearest(int value, int most, const Valid& valid) {
  std::optional<int> below, above;
  for (int v = std::min(value, most); v >= 1 && !below; --v)
    if (valid(v)) below = v;
  for (int v = value + 1; v <= most && !above; ++v)
    if (valid(v)) above = v;
  if (below && above) return fmt::format("{} or {}", *below, *above);
  if (below || above) return fmt::format("{}", below ? *below : *above);
  return "none";
}

bool divides(std::int64_t divisor, int world) { return divisor <= world && world % divisor == 0; }

std::string nearest_worlds(std::int64_t product, int world) {
  const std::int64_t below = world / product * product;
  return below == 0 ? fmt::format("{}", product) : fmt::format("{} or {}", below, below + product);
}

void check_limits(const MeshSizes& s, std::vector<std::string>& problems) {
  if (s.world < 1 || s.world > most_ranks)
    problems.push_back(fmt::format("world size {}: must be in 1..{}", s.world, most_ranks));
  for (const auto& [key, value] : {std::pair{tp_key, s.tp}, {cp_key, s.cp}, {pp_key, s.pp}, {ep_key, s.ep}})
    if (value < 1 || value > most_ranks)
      problems.push_back(fmt::format("dist.{}={}: must be in 1..{}", key, value, most_ranks));
  if (s.etp < 0 || s.etp > most_ranks)
    problems.push_back(fmt::format("dist.{}={}: must be in 1..{}, or 0 for {}", etp_key, s.etp, most_ranks, tp_key));
}

void check_dense(const MeshSizes& s, std::vector<std::string>& problems) {
  const std::int64_t others = std::int64_t{s.cp} * s.pp, product = s.tp * others;
  if (divides(product, s.world)) return;
  problems.push_back(
      fmt::format("dist.{}={}: times {}={} and {}={} is {}, which must divide the world size {}; nearest: {} of {}, or "
                  "a world of {}",
                  tp_key, s.tp, cp_key, s.cp, pp_key, s.pp, product, s.world,
                  nearest(s.tp, s.world, [&](int tp) { return divides(tp * others, s.world); }), tp_key,
                  nearest_worlds(product, s.world)));
}

void check_expert(const MeshSizes& s, std::vector<std::string>& problems) {
  const int etp = resolved_etp(s);
  const std::int64_t others = std::int64_t{etp} * s.pp, product = s.ep * others;
  if (divides(product, s.world) || (s.ep == 1 && s.etp == 0)) return;  // without experts, the dense rule says it all
  problems.push_back(
      fmt::format("dist.{}={}: times {}={} and {}={} is {}, which must divide the world size {}; nearest: {} of {}, or "
                  "a world of {}",
                  ep_key, s.ep, etp_key, etp, pp_key, s.pp, product, s.world,
                  nearest(s.ep, s.world, [&](int ep) { return divides(ep * others, s.world); }), ep_key,
                  nearest_worlds(product, s.world)));
}

// With pp inside dp, the stages of one pipeline are tp*cp ranks apart in the dense view and etp*ep in the expert one.
void check_order(const MeshSizes& s, std::vector<std::string>& problems) {
  if (s.order == MeshOrder::tp_cp_ep_dp_pp || s.pp == 1) return;
  const int etp = resolved_etp(s);
  const std::int64_t dense = std::int64_t{s.tp} * s.cp, expert = std::int64_t{etp} * s.ep;
  if (dense == expert) return;
  const std::string fitting = dense % etp == 0 ? fmt::format("{}={}", ep_key, dense / etp)
                                               : fmt::format("{}={} with {}=1", ep_key, dense, etp_key);
  problems.push_back(
      fmt::format("dist.{}={}: in the order {}, {} times {}={} must be {} times {}, which is {}, so that both "
                  "views have the same pipelines; nearest: {}, or the order {}",
                  ep_key, s.ep, name_of(s.order), ep_key, etp_key, etp, tp_key, cp_key, dense, fitting,
                  name_of(MeshOrder::tp_cp_ep_dp_pp)));
}

}  // namespace

std::vector<std::string> mesh_problems(const MeshSizes& sizes) {
  std::vector<std::string> problems;
  check_limits(sizes, problems);
  if (!problems.empty()) return problems;  // the other rules count on positive numbers
  check_dense(sizes, problems);
  check_expert(sizes, problems);
  check_order(sizes, problems);
  return problems;
}

MeshPlan::MeshPlan(const MeshSizes& sizes) : sizes_(sizes) {
  if (const auto problems = mesh_problems(sizes); !problems.empty()) fail_user("{}", fmt::join(problems, "\n"));
  sizes_.etp = resolved_etp(sizes);
  dp_ = sizes.world / (sizes_.tp * sizes_.cp * sizes_.pp);
  edp_ = sizes.world / (sizes_.etp * sizes_.ep * sizes_.pp);
}

MeshPlan::Strides MeshPlan::strides(int inner, int dp) const {
  if (sizes_.order == MeshOrder::tp_cp_ep_dp_pp) return {.dp = inner, .pp = inner * dp};
  return {.dp = inner * sizes_.pp, .pp = inner};
}

Coord MeshPlan::coord(int rank) const {
  require(rank >= 0 && rank < sizes_.world, "rank {} of a world of {}", rank, sizes_.world);
  const Strides dense = strides(sizes_.tp * sizes_.cp, dp_), expert = strides(sizes_.etp * sizes_.ep, edp_);
  return {.tp = rank % sizes_.tp,
          .cp = rank / sizes_.tp % sizes_.cp,
          .dp = rank / dense.dp % dp_,
          .pp = rank / dense.pp % sizes_.pp,
          .etp = rank % sizes_.etp,
          .ep = rank / sizes_.etp % sizes_.ep,
          .edp = rank / expert.dp % edp_};
}

int MeshPlan::rank(const Coord& c) const {
  const Strides stride = strides(sizes_.tp * sizes_.cp, dp_);
  return c.tp + c.cp * sizes_.tp + c.dp * stride.dp + c.pp * stride.pp;
}

int MeshPlan::expert_rank(const Coord& c) const {
  const Strides stride = strides(sizes_.etp * sizes_.ep, edp_);
  return c.etp + c.ep * sizes_.etp + c.edp * stride.dp + c.pp * stride.pp;
}

std::vector<int> MeshPlan::members(Axis axis, int rank) const {
  std::vector<int> ranks;
  Coord c = coord(rank);
  const auto along = [&](int Coord::*member, int size, auto rank_of) {
    for (c.*member = 0; c.*member < size; ++(c.*member)) ranks.push_back((this->*rank_of)(c));
  };
  switch (axis) {
    case Axis::tp: along(&Coord::tp, sizes_.tp, &MeshPlan::rank); break;
    case Axis::cp: along(&Coord::cp, sizes_.cp, &MeshPlan::rank); break;
    case Axis::dp: along(&Coord::dp, dp_, &MeshPlan::rank); break;
    case Axis::pp: along(&Coord::pp, sizes_.pp, &MeshPlan::rank); break;
    case Axis::etp: along(&Coord::etp, sizes_.etp, &MeshPlan::expert_rank); break;
    case Axis::ep: along(&Coord::ep, sizes_.ep, &MeshPlan::expert_rank); break;
    case Axis::edp: along(&Coord::edp, edp_, &MeshPlan::expert_rank); break;
    case Axis::dp_cp:
      for (c.dp = 0; c.dp < dp_; ++c.dp)
        for (c.cp = 0; c.cp < sizes_.cp; ++c.cp) ranks.push_back(this->rank(c));
      break;
    case Axis::embed: {
      const bool holds_it = c.pp == 0 || c.pp == sizes_.pp - 1;
      if (sizes_.pp == 1 || !holds_it) return {rank};
      Coord first = c, last = c;
      first.pp = 0;
      last.pp = sizes_.pp - 1;
      return {this->rank(first), this->rank(last)};
    }
    case Axis::world:
      for (int r = 0; r < sizes_.world; ++r) ranks.push_back(r);
      break;
  }
  return ranks;
}

}  // namespace tera
