#include "tera/parallel/mesh_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/base/nearest.h"
#include "tera/parallel/mesh_rules.h"

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
  int MeshSizes::*member;
};
using Factors = std::array<Factor, 3>;
using ProblemList = std::vector<MeshProblem>;

int resolved_etp(const MeshSizes& sizes) { return sizes.etp == 0 ? sizes.tp : sizes.etp; }

void add_problem(ProblemList& problems, const Factor& factor, std::string rule) {
  problems.push_back({fmt::format("dist.{}", factor.key), factor.value, std::move(rule)});
}

void check_limits(const MeshSizes& s, ProblemList& problems) {
  const std::string rule = fmt::format("must be in 1..{}", max_ranks);
  if (s.world < 1 || s.world > max_ranks) problems.push_back({"world", s.world, rule});
  for (const Factor& factor : {Factor{tp_key, s.tp, &MeshSizes::tp},
                               {cp_key, s.cp, &MeshSizes::cp},
                               {pp_key, s.pp, &MeshSizes::pp},
                               {ep_key, s.ep, &MeshSizes::ep}})
    if (factor.value < 1 || factor.value > max_ranks) add_problem(problems, factor, rule);
  if (s.etp < 0 || s.etp > max_ranks)
    add_problem(problems, {etp_key, s.etp, &MeshSizes::etp}, fmt::format("{}, or 0 for {}", rule, tp_key));
}

// The product of sizes that has to divide the world, in the dense view and in the expert view.
std::int64_t dense_product(const MeshSizes& s) { return std::int64_t{s.tp} * s.cp * s.pp; }
bool has_expert_view(const MeshSizes& s) { return s.ep > 1 || s.etp > 0; }  // false: it is the dense view
std::int64_t expert_product(const MeshSizes& s) {
  return has_expert_view(s) ? std::int64_t{resolved_etp(s)} * s.ep * s.pp : 1;
}
// The stages of one pipeline are, with pp inside dp, tp*cp ranks apart in the dense view and etp*ep in the expert one.
bool keeps_order(const MeshSizes& s) {
  return s.order == MeshOrder::tp_cp_ep_dp_pp || s.pp == 1 ||
         std::int64_t{s.tp} * s.cp == std::int64_t{resolved_etp(s)} * s.ep;
}

// A world that is valid in both views is a multiple of this; of `product` alone where the lcm could overflow.
std::int64_t common_product(const MeshSizes& s, std::int64_t product) {
  const std::int64_t dense = dense_product(s), expert = expert_product(s);
  return std::max(dense, expert) > max_ranks ? product : std::lcm(dense, expert);
}

// "tensor_model_parallel_size 2 or 4, pipeline_model_parallel_size 1": valid sizes with one of the factors changed and
// the others kept.
template <class Valid>
std::string nearest_factors(const Factors& factors, const MeshSizes& sizes, std::int64_t experts, const Valid& valid) {
  std::string out;
  for (const Factor& factor : factors) {
    if (factor.value == 1) continue;
    const bool splits_experts = factor.member == &MeshSizes::ep && experts > 0;
    const std::string values = nearest_values(factor.value, sizes.world, [&](std::int64_t v) {
      MeshSizes changed = sizes;
      changed.*factor.member = static_cast<int>(v);
      return (!splits_experts || experts % v == 0) && valid(changed);
    });
    if (!values.empty()) out += fmt::format("{} {}, ", factor.key, values);
  }
  return out;
}

// Checks that the product divides the world. The message leaves out factors of 1. It offers sizes with which all rules
// hold; where no single change does that, sizes with which this rule holds.
void check_product(const Factors& factors, const MeshSizes& sizes, std::int64_t experts,
                   std::int64_t (*product_of)(const MeshSizes&), ProblemList& problems) {
  const int world = sizes.world;
  std::int64_t product = 1;
  std::vector<std::string> others;
  const Factor* first = nullptr;
  for (const Factor& factor : factors) {
    product *= factor.value;
    if (factor.value > 1 && first != nullptr) others.push_back(fmt::format("{}={}", factor.key, factor.value));
    if (factor.value > 1 && first == nullptr) first = &factor;
  }
  if (product <= world && world % product == 0) return;
  std::string nearest = nearest_factors(factors, sizes, experts, is_valid_mesh);
  if (nearest.empty())
    nearest = nearest_factors(factors, sizes, experts,
                              [&](const MeshSizes& changed) { return world % product_of(changed) == 0; });
  const std::string what =
      others.empty() ? "must" : fmt::format("times {} is {}, which must", joined(others, " and "), product);
  add_problem(problems, *first,
              fmt::format("{} divide the number of ranks, which is {}; nearest: {}or {} ranks", what, world, nearest,
                          nearest_multiples(common_product(sizes, product), world)));
}

void check_dense(const MeshSizes& s, std::int64_t experts, ProblemList& problems) {
  const Factors factors{
      {{tp_key, s.tp, &MeshSizes::tp}, {cp_key, s.cp, &MeshSizes::cp}, {pp_key, s.pp, &MeshSizes::pp}}};
  check_product(factors, s, experts, dense_product, problems);
}

void check_expert(const MeshSizes& s, std::int64_t experts, ProblemList& problems) {
  if (!has_expert_view(s)) return;
  const Factors factors{
      {{ep_key, s.ep, &MeshSizes::ep}, {etp_key, resolved_etp(s), &MeshSizes::etp}, {pp_key, s.pp, &MeshSizes::pp}}};
  check_product(factors, s, experts, expert_product, problems);
}

void check_order(const MeshSizes& s, ProblemList& problems) {
  if (keeps_order(s)) return;
  const int etp = resolved_etp(s);
  const std::int64_t dense = std::int64_t{s.tp} * s.cp;
  const std::string fitting = dense % etp == 0 ? fmt::format("{}={}", ep_key, dense / etp)
                                               : fmt::format("{}={} with {}=1", ep_key, dense, etp_key);
  add_problem(problems, {ep_key, s.ep, &MeshSizes::ep},
              fmt::format("in the order {}, {} times {}={} must be {} times {}, which is {}, so that both views have "
                          "the same pipelines; nearest: {}, or the order {}",
                          name_of(s.order), ep_key, etp_key, etp, tp_key, cp_key, dense, fitting,
                          name_of(MeshOrder::tp_cp_ep_dp_pp)));
}

}  // namespace

std::string MeshProblem::text() const { return fmt::format("{}={}: {}", key, value, rule); }

bool is_valid_mesh(const MeshSizes& s) {
  return s.world % dense_product(s) == 0 && s.world % expert_product(s) == 0 && keeps_order(s);
}

std::vector<MeshProblem> mesh_problems(const MeshSizes& sizes, std::int64_t experts) {
  ProblemList problems;
  check_limits(sizes, problems);
  if (!problems.empty()) return problems;  // the other rules need positive numbers
  check_dense(sizes, experts, problems);
  check_expert(sizes, experts, problems);
  check_order(sizes, problems);
  return problems;
}

std::vector<MeshProblem> mesh_problems(const MeshSizes& sizes) { return mesh_problems(sizes, 0); }

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
      const bool has_embedding = c.pp == 0 || c.pp == sizes_.pp - 1;
      if (sizes_.pp == 1 || !has_embedding) return {rank};
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
