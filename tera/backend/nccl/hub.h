#pragma once
// Rank 0's second job: the hub that all ranks are connected to. It puts together what groups gather, knows what every
// rank does, notices who is gone or silent, and tells everybody. One thread; it computes nothing, so it always answers.

#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tera/backend/nccl/frame.h"
#include "tera/comm/call.h"

namespace tera::nccl {

class Hub {
 public:
  static constexpr std::uint64_t any_call = ~std::uint64_t{0};  // of a group; nobody counts it

  // quiet: how long a rank may say nothing before it counts as stopped.
  Hub(std::vector<Link> links, std::chrono::milliseconds quiet);
  ~Hub();  // when all ranks have been told that it is over; waits for that no longer than the ranks' own end takes
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

 private:
  struct Member {
    Link link;
    Clock::time_point last_heard;
    std::string doing;                             // as it said last
    std::map<std::uint64_t, std::uint64_t> calls;  // that it has made, by group
    std::string fault;                             // its own
    std::string lost;                              // why it counts as gone; empty: it does not
    bool has_left = false;
  };
  struct Part {
    int rank = -1;  // of the world; -1: has not come
    Call call;
    std::vector<std::byte> bytes;
  };
  struct Gather {
    std::vector<Part> parts;  // by rank of the group
    int come = 0;
    bool of_first = false;  // nobody else brings anything
  };
  using GatherKey = std::pair<std::uint64_t, std::uint64_t>;  // group, round

  void run();
  void pump_all();
  void beat();
  void look_for_the_silent();
  void handle(int rank, const Frame& frame);
  void take_beat(Member& member, const Frame& frame);
  void take_part(int rank, const Frame& frame);
  void complete(const GatherKey& key, Gather& gather);
  void answer(int rank, const Frame& frame);
  void lose(int rank, std::string reason);
  void fail_with(int rank, const std::string& reason);
  bool is_over() const;
  void tell_the_end();
  std::string text_of(int rank) const;
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void send(int rank, FrameKind kind, const Packer& payload) { member(rank).link.send(kind, payload.bytes()); }

  std::vector<Member> members_;
  const std::chrono::milliseconds quiet_;
  std::map<GatherKey, Gather> gathers_;
  Clock::time_point last_beat_{}, last_look_{};
  bool failed_ = false;
  Clock::time_point failed_at_{};
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

}  // namespace tera::nccl
