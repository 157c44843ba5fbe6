#pragma once
// How messages name what ranks do: the call that all ranks of a group must agree on, and the last call of a rank.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tera/base/enum_names.h"
#include "tera/ops/reduce.h"
#include "tera/tensor/dtype.h"

namespace tera {

enum class CallKind : std::uint8_t {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  exchange,
  barrier,
  split
};

template <>
struct EnumNames<CallKind> {
  static constexpr std::array values{std::pair{CallKind::none, std::string_view("nothing")},
                                     std::pair{CallKind::all_reduce, std::string_view("all_reduce")},
                                     std::pair{CallKind::all_gather, std::string_view("all_gather")},
                                     std::pair{CallKind::reduce_scatter, std::string_view("reduce_scatter")},
                                     std::pair{CallKind::all_to_all, std::string_view("all_to_all")},
                                     std::pair{CallKind::broadcast, std::string_view("broadcast")},
                                     std::pair{CallKind::exchange, std::string_view("exchange")},
                                     std::pair{CallKind::barrier, std::string_view("barrier")},
                                     std::pair{CallKind::split, std::string_view("split")}};
};

// What all ranks of a call must agree on.
struct Call {
  CallKind kind = CallKind::none;
  DType dtype = DType::f32;
  std::int64_t elements = 0;  // in a shard; all_to_all: in a row; exchange: in all its tensors
  Reduce how = Reduce::sum;
  int root = 0;
  bool operator==(const Call&) const = default;
};

std::string to_string(const Call& call);  // "all_reduce sum f32 x 10"

// The call that a rank is in, or its last one.
struct RankActivity {
  int rank = 0;            // rank of the world
  std::string_view group;  // name of the call's group; empty: the rank has called nothing yet
  Call call;
  std::uint64_t calls = 0;  // number of calls, this one included
  bool inside = false;
};

std::string to_string(const RankActivity& activity);  // "rank 1 is in all_gather f32 x 40 of dp, its call 17"

// "ranks 1, 2 did not come (rank 1 ...; rank 2 ...)"
std::string describe_absent(std::span<const int> ranks, std::span<const std::string> activities);
// "it waits for ranks 1, 2 (rank 1 ...; rank 2 ...)": these may have come already
std::string describe_awaited(std::span<const int> ranks, std::span<const std::string> activities);

}  // namespace tera
