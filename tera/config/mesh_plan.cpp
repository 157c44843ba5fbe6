#include "tera/config/mesh_plan.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/config/nearest.h"

namespace tera {
namespace {

constexpr auto tp_key = "tensor_model_parallel_size";
constexpr auto cp_key = "context_parallel_size";
constexpr auto pp_key = "pipeline_model_parallel_size";
constexpr auto ep_key = "expert_model_parallel_size";
constexpr auto etp_key = "expert_tensor_parallel_size";

struct Factor {
  const char* key;
  int value;
};
using Factors = std::array<Factor, 3>;
using ProblemList = std::vector<MeshProblem>;

int resolved_etp(const MeshSizes& sizes) { return sizes.etp == 0 ? sizes.tp : sizes.etp; }

void add_problem(ProblemList& problems, const Factor& factor, std::string rule) {
  problems.push_back({fmt::format("dist.{}", factor.key), factor.value, std::move(rule)});
}

void check_limits(const MeshSizes& s, ProblemList& problems) {
  const std::string rule = fmt::format("must be in 1..{}", most_ranks);
  if (s.world < 1 || s.world > most_ranks) problems.push_back({"world", s.world, rule});
  for (const Factor& factor : {Factor{tp_key, s.tp}, {cp_key, s.cp}, {pp_key, s.pp}, {ep_key, s.ep}})
    if (factor.value < 1 || factor.value > most_ranks) add_problem(problems, factor, rule);
  if (s.etp < 0 || s.etp > most_ranks)
    add_problem(problems, {etp_key, s.etp}, fmt::format("{}, or 0 for {}", rule, tp_key));
}

// "tensor_model_parallel_size 2 or 4, pipeline_model_parallel_size 1": one of the factors changed, the others kept.
std::string nearest_factors(const Factors& factors, std::int64_t product, int world) {
  std::string out;
  for (const auto& [key, value] : factors) {
    const std::int64_t others = product / value;
    const std::string values =
        nearest_values(value, world, [&](std::int64_t v) { return v * others <= world && world % (v * others) == 0; });
    if (value > 1 && !values.empty()) out += fmt::format("{} {}, ", key, values);
  }
  return out;
}

// The product divides the world. What is 1 has no part in it and is not told.
void check_product(const Factors& factors, int world, ProblemList& problems) {
  std::int64_t product = 1;
  std::vector<std::string> others;
  const Factor* first = nullptr;
  for (const Factor& factor : factors) {
    product *= factor.value;
    if (factor.value > 1 && first != nullptr) others.push_back(fmt::format("{}={}", factor.key, factor.value));
    if (factor.value > 1 && first == nullptr) first = &factor;
  }
  if (product <= world && world % product == 0) return;
  const std::string what =
      others.empty() ? "must" : fmt::format("times {} is {}, which must", joined(others, " and "), product);
  add_problem(problems, *first,
              fmt::format("{} divide the number of ranks, which is {}; nearest: {}or {} ranks", what, world,
                          nearest_factors(factors, product, world), nearest_multiples(product, world)));
}

void check_dense(const MeshSizes& s, ProblemList& problems) {
  check_product({{{tp_key, s.tp}, {cp_key, s.cp}, {pp_key, s.pp}}}, s.world, problems);
}

void check_expert(const MeshSizes& s, ProblemList& problems) {
  if (s.ep == 1 && s.etp == 0) return;  // without experts, the dense rule says it all
  check_product({{{ep_key, s.ep}, {etp_key, resolved_etp(s)}, {pp_key, s.pp}}}, s.world, problems);
}

// With pp inside dp, the stages of one pipeline are tp*cp ranks apart in the dense view and etp*ep in the expert one.
void check_order(const MeshSizes& s, ProblemList& problems) {
  if (s.order == MeshOrder::tp_cp_ep_dp_pp || s.pp == 1) return;
  const int etp = resolved_etp(s);
  const std::int64_t dense = std::int64_t{s.tp} * s.cp, expert = std::int64_t{etp} * s.ep;
  if (dense == expert) return;
  const std::string fitting = dense % etp == 0 ? fmt::format("{}={}", ep_key, dense / etp)
                                               : fmt::format("{}={} with {}=1", ep_key, dense, etp_key);
  add_problem(problems, {ep_key, s.ep},
              fmt::format("in the order {}, {} times {}={} must be {} times {}, which is {}, so that both views have "
                          "the same pipelines; nearest: {}, or the order {}",
                          name_of(s.order), ep_key, etp_key, etp, tp_key, cp_key, dense, fitting,
                          name_of(MeshOrder::tp_cp_ep_dp_pp)));
}

}  // namespace

std::string MeshProblem::text() const { return fmt::format("{}={}: {}", key, value, rule); }

std::vector<MeshProblem> mesh_problems(const MeshSizes& sizes) {
  ProblemList problems;
  check_limits(sizes, problems);
  if (!problems.empty()) return problems;  // the other rules count on positive numbers
  check_dense(sizes, problems);
  check_expert(sizes, problems);
  check_order(sizes, problems);
  return problems;
}

MeshPlan::MeshPlan(const MeshSizes& sizes) : sizes_(sizes) {
  std::vector<std::string> lines;
  for (const MeshProblem& problem : mesh_problems(sizes)) lines.push_back(problem.text());
  if (!lines.empty()) fail_user("{}", joined(lines, "\n"));
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
    case Axis::etp_ep:
      for (c.ep = 0; c.ep < sizes_.ep; ++c.ep)
        for (c.etp = 0; c.etp < sizes_.etp; ++c.etp) ranks.push_back(expert_rank(c));
      break;
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
