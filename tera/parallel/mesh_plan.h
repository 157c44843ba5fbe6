#pragma once
// The device mesh: ranks, coordinates and process groups, by arithmetic without communication, so that a laptop can lay
// out any world.
//
// Every rank has coordinates in two views of the world (parallel folding). The dense view (attention, embedding, head)
// is tp x cp x dp x pp; the expert view (routed experts) is etp x ep x edp x pp. In both, the leftmost axis of the
// order has stride 1; pp is the same in both. docs/parallelism.md has pictures.

#include <cstdint>
#include <string>
#include <vector>

#include "tera/base/enum_names.h"

namespace tera {

enum class MeshOrder : std::uint8_t { tp_cp_ep_dp_pp, tp_cp_ep_pp_dp };

template <>
struct EnumNames<MeshOrder> {
  static constexpr std::array values{std::pair{MeshOrder::tp_cp_ep_dp_pp, std::string_view("tp-cp-ep-dp-pp")},
                                     std::pair{MeshOrder::tp_cp_ep_pp_dp, std::string_view("tp-cp-ep-pp-dp")}};
};

inline constexpr int max_ranks = 1 << 20;  // the product of three sizes fits 64 bits

struct MeshSizes {
  int world = 1;                       // ranks in all; dp and edp follow from it
  int tp = 1, cp = 1, pp = 1, ep = 1;  // tensor, context, pipeline, expert
  int etp = 0;                         // tensor parallelism inside experts; 0: equal to tp
  MeshOrder order = MeshOrder::tp_cp_ep_dp_pp;
  bool operator==(const MeshSizes&) const = default;
};

// A rule that the sizes break.
struct MeshProblem {
  std::string key;  // "dist.tensor_model_parallel_size", or "world"
  int value = 0;
  std::string rule;  // what must hold, and the nearest values with which it does

  std::string text() const;  // one line
};

// All rules that the sizes break.
std::vector<MeshProblem> mesh_problems(const MeshSizes& sizes);

struct Coord {
  int tp = 0, cp = 0, dp = 0, pp = 0;  // dense view
  int etp = 0, ep = 0, edp = 0;        // expert view, with the same pp
  bool operator==(const Coord&) const = default;
};

// The process groups. embed: first and last pipeline stage, which hold a tied embedding table; a rank between them is
// alone in its group. etp_ep: ranks that together hold every expert of a layer once.
enum class Axis : std::uint8_t { world, tp, cp, dp, dp_cp, pp, ep, etp, etp_ep, edp, embed };

template <>
struct EnumNames<Axis> {
  static constexpr std::array values{
      std::pair{Axis::world, std::string_view("world")},   std::pair{Axis::tp, std::string_view("tp")},
      std::pair{Axis::cp, std::string_view("cp")},         std::pair{Axis::dp, std::string_view("dp")},
      std::pair{Axis::dp_cp, std::string_view("dp_cp")},   std::pair{Axis::pp, std::string_view("pp")},
      std::pair{Axis::ep, std::string_view("ep")},         std::pair{Axis::etp, std::string_view("etp")},
      std::pair{Axis::etp_ep, std::string_view("etp_ep")}, std::pair{Axis::edp, std::string_view("edp")},
      std::pair{Axis::embed, std::string_view("embed")}};
};

class MeshPlan {
 public:
  explicit MeshPlan(const MeshSizes& sizes);  // UserError with all mesh_problems

  const MeshSizes& sizes() const { return sizes_; }  // etp is resolved
  int dp() const { return dp_; }
  int edp() const { return edp_; }

  Coord coord(int rank) const;
  int rank(const Coord& coord) const;         // from tp, cp, dp, pp
  int expert_rank(const Coord& coord) const;  // from etp, ep, edp, pp

  // The ranks of this rank's group, ascending; a member's index is its rank in the group.
  std::vector<int> members(Axis axis, int rank) const;
  // Equal for all members of a group, and different between groups.
  int color(Axis axis, int rank) const { return members(axis, rank).front(); }

 private:
  // Strides of the outer axes of a view whose inner two axes have `inner` ranks.
  struct Strides {
    int dp, pp;
  };
  Strides strides(int inner, int dp) const;

  MeshSizes sizes_;
  int dp_, edp_;
};

}  // namespace tera
