#pragma once
// How messages name what ranks do: the call that all of a group must agree on, and what a rank did last.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tera/base/enum_names.h"
#include "tera/ops/combine.h"
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
  std::int64_t elements = 0;  // of a shard, of a row in all_to_all, of all tensors of an exchange
  Reduce how = Reduce::sum;
  int root = 0;
  bool operator==(const Call&) const = default;
};

std::string to_string(const Call& call);  // "all_reduce sum f32 x 10"

// What a rank is doing or did last.
struct Doing {
  int rank = 0;            // of the world
  std::string_view group;  // of the call; empty: it has called nothing yet
  Call call;
  std::uint64_t calls = 0;  // up to this one
  bool inside = false;
};

std::string to_string(const Doing& doing);  // "rank 1 is in all_gather f32 x 40 of dp, its call 17"

// "ranks 1, 2 did not come (rank 1 ...; rank 2 ...)"
std::string did_not_come(std::span<const int> ranks, std::span<const std::string> doing);
// "it waits for ranks 1, 2 (rank 1 ...; rank 2 ...)", which may have come
std::string waits_for(std::span<const int> ranks, std::span<const std::string> doing);

}  // namespace tera
