#pragma once
// Where the time of a profiled stretch went: what a rank's queue did, and what ran beside it.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tera {

enum class WorkKind : std::uint8_t { gemm, attention, memory_bound, optimizer, transfer, count };

struct Profile {
  // Milliseconds by kind of work.
  using Times = std::array<double, static_cast<std::size_t>(WorkKind::count)>;

  // Milliseconds since the first call.
  struct Span {
    double begin = 0, end = 0;
    double ms() const { return end - begin; }
  };
  // A call of the rank's own queue; one follows the other.
  struct Work : Span {
    WorkKind kind{};
    std::string block;  // "attention", "mlp"
  };
  // Something on another queue: a call between ranks ("tp", "all_gather"), a copy to the host ("offload", "to the
  // host").
  struct Beside : Span {
    std::string queue, name;
  };
  // All of one name on one other queue.
  struct Overlap {
    int calls = 0;
    double ms = 0;       // under way
    double covered = 0;  // of these, while the rank's own queue worked
  };

  double total_ms = 0;  // from the first call to the end of the last; what calls do not cover is idle
  std::vector<Work> work;
  std::vector<Beside> beside;

  double of(WorkKind kind) const;
  double busy() const;
  std::map<std::string, Times> by_block() const;
  std::map<std::string, Overlap> overlaps() const;  // by "queue name"
  std::string table() const;
};

// As the viewers of browsers read it (chrome://tracing, ui.perfetto.dev).
void write_trace(const Profile& profile, const std::filesystem::path& file);

}  // namespace tera
