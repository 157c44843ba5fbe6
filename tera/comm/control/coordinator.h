#pragma once
// The coordinator of the control plane, a thread of rank 0 that all ranks are connected to. It serves gathers, knows
// from heartbeats what every rank does, detects ranks that are gone or silent, and reports them to all. It computes
// nothing, so it always answers.

#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tera/comm/call.h"
#include "tera/comm/control/frame.h"

namespace tera::control {

// How a rank that has waited too long knows who did not come.
enum class AbsentBy : std::uint8_t {
  gather,  // ranks without a part in the gather of this number
  call,    // ranks that have begun fewer calls
  asker    // all ranks that it names
};
struct Query {
  std::uint64_t group = 0, number = 0;
  AbsentBy by = AbsentBy::asker;
};

class Coordinator {
 public:
  static constexpr std::uint64_t any_call = ~std::uint64_t{0};  // an exchange, which is not counted
  static constexpr std::size_t expected_groups = 64;            // heartbeats that name no more groups take no memory

  // A rank without a heartbeat for heartbeat_timeout counts as stopped.
  Coordinator(std::vector<Link> links, std::chrono::milliseconds heartbeat_timeout);
  // Waits until the end has been reported to all ranks, no longer than the ranks' own end takes.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

 private:
  struct Member {
    Link link;
    Clock::time_point last_heard;
    RankActivity activity{};  // as of its last heartbeat, less the group's name
    std::string group{};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> calls;  // groups, and the number of calls made in each
    std::string fault;                                           // its own
    std::string lost;                                            // why it counts as lost; empty: it is connected
    bool has_left = false, transfers_over = false, has_reported = false;
  };
  struct Part {
    int rank = -1;  // rank of the world; -1: it has not come
    Call call;
    std::vector<std::byte> bytes;
  };
  struct Gather {
    std::vector<Part> parts;  // by rank of the group
    int come = 0;
    bool from_first = false;  // a broadcast: only the first rank's part has bytes
  };
  using GatherKey = std::pair<std::uint64_t, std::uint64_t>;  // group, round

  void run();
  void pump_all();
  void heartbeat();
  void check_heartbeats();
  void handle(int rank, const Frame& frame);
  void take_heartbeat(Member& member, const Frame& frame);
  void take_contribution(int rank, const Frame& frame);
  void complete(const GatherKey& key, Gather& gather);
  void answer(int rank, const Frame& frame);
  bool has_not_come(int rank, const Query& query);
  std::string activity_of(int rank);
  std::string describe(int rank);
  void lose(int rank, std::string reason);
  void fail_with(int rank, const std::string& reason);
  bool is_over() const;
  static bool is_here(const Member& m) { return m.lost.empty() && m.link.open(); }
  void report_the_end();
  void await_reports();
  int first_here(bool has_left) const;
  std::string final_report_of(int rank, int first) const;
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void send(int rank, FrameKind kind, const Packer& payload) { member(rank).link.send(kind, payload.bytes()); }

  std::vector<Member> members_;
  const std::chrono::milliseconds heartbeat_timeout_;
  std::map<GatherKey, Gather> gathers_;
  Clock::time_point last_heartbeat_{}, last_check_{};
  bool failed_ = false;
  Clock::time_point failed_at_{};
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

}  // namespace tera::control
