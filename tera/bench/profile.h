#pragma once
// A profile of a step on one rank: the calls on its compute queue, and communication and copies that overlap them.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tera/ops/op_list.h"

namespace tera {

struct Profile {
  // Milliseconds by kind of work.
  using Times = std::array<double, static_cast<std::size_t>(OpKind::count)>;

  // Milliseconds since the first call.
  struct Span {
    double begin = 0, end = 0;
    double ms() const { return end - begin; }
  };
  // A call on the rank's compute queue; calls do not overlap each other.
  struct Work : Span {
    OpKind kind{};
    std::string block;  // "attention", "mlp"
  };
  // An asynchronous call on another queue: communication ("tp", "all_gather") or a copy to the host ("offload", "to the
  // host").
  struct AsyncCall : Span {
    std::string queue, name;
  };
  // All asynchronous calls of one name on one queue.
  struct Overlap {
    int calls = 0;
    double ms = 0;       // in flight
    double covered = 0;  // part of ms that overlapped with work on the compute queue
  };

  double total_ms = 0;  // from the first call to the end of the last; time without a call is idle
  std::vector<Work> work;
  std::vector<AsyncCall> async_calls;

  double of(OpKind kind) const;
  double busy() const;
  std::map<std::string, Times> by_block() const;
  std::map<std::string, Overlap> overlaps() const;  // by "queue name"
  std::string table() const;
};

// Writes the Chrome trace event format (chrome://tracing, ui.perfetto.dev).
void write_trace(const Profile& profile, const std::filesystem::path& file);

}  // namespace tera
