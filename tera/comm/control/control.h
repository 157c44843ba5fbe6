#pragma once
// The control plane of ranks as processes, on the host, beside MPI or NCCL, which move the tensors: small all-gathers,
// heartbeats with what each rank does, reports of failures, and the end of the job. A rank has one TCP connection, to
// the coordinator on rank 0, and a thread that answers while the rank itself is stuck.
// docs/decisions/control-plane.md says why.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tera/base/function_ref.h"
#include "tera/comm/call.h"
#include "tera/comm/control/coordinator.h"
#include "tera/comm/control/rendezvous.h"

namespace tera::control {

struct ControlOptions {
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{600'000};  // limit of every wait
  // A rank without a heartbeat for so long counts as stopped or unreachable; no longer than the timeout. The
  // coordinator itself is given a quarter more.
  std::chrono::milliseconds heartbeat_timeout{8'000};
  // After a failure: a rank that does not leave within this time is stuck in a call that nobody can end, and its
  // process is ended. heartbeat_timeout and shutdown_grace together bound the end of the job: when a rank is stopped,
  // all others have ended within 15 s.
  std::chrono::milliseconds shutdown_grace{3'000};
  // The shutdown grace of a rank that has reported its own fault: it frees memory, or waits for files that it writes.
  // Beside MPI the job is killed before, since no rank can be left out of MPI_Finalize.
  std::chrono::milliseconds unwind_timeout{60'000};
};

// The time that a rank waits, in naps. A nap counts for a second at most: during a longer one the process was stopped,
// which is no waiting.
class WaitTime {
 public:
  explicit WaitTime(Clock::duration time) : left_(time), nap_began_(Clock::now()) {}
  bool is_over() const { return left_ <= Clock::duration::zero(); }
  Clock::time_point nap_end() const { return nap_began_ + std::min<Clock::duration>(left_, max_nap); }
  void end_nap() {
    const auto now = Clock::now();
    left_ -= std::min<Clock::duration>(now - nap_began_, 2 * max_nap);
    nap_began_ = now;
  }

 private:
  static constexpr std::chrono::milliseconds max_nap{500};
  Clock::duration left_;
  Clock::time_point nap_began_;
};

// How the job ended. All ranks that hear it hear the same.
struct JobEnd {
  std::vector<std::string> lines{};  // to be reported by this rank
  bool in_order = false;             // every rank has left and is still there, and its transfers are over
  bool kills = false;                // where it is not in order: this rank ends the job, the others wait for that
};

// A group of ranks, as each member knows it.
struct ControlGroup {
  std::string name{};
  std::uint64_t id = 0;        // equal on all members; no other group has it
  std::vector<int> members{};  // ranks of the world
  int rank = 0;                // rank of this process in the group
  std::uint64_t rounds = 0;    // gathers that were made
  std::uint64_t calls = 0;     // collectives that this rank has begun

  int size() const { return static_cast<int>(members.size()); }
};

class Control {
 public:
  // leave() returns what this rank has to report; where the rank takes long to leave, `report` gets it.
  Control(Links links, const ControlOptions& options, FunctionRef<void(std::string_view)> report);
  ~Control();  // after leave
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return options_.rank; }  // rank of the world
  int size() const { return options_.size; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  ControlGroup world();  // a new group at each call; all ranks call equally often
  // All-gather: every member contributes equally many bytes, and has those of all, in order of the group, on return.
  void gather(ControlGroup& group, const Call& call, std::span<const std::byte> local, std::span<std::byte> all);
  // Broadcast of the bytes of the group's first rank.
  void broadcast_from_first(ControlGroup& group, const Call& call, std::span<std::byte> bytes);
  // The group of all ranks with this rank's color, ordered by key and then by rank in the group.
  ControlGroup split(ControlGroup& group, int color, int key, std::string name);

  // What heartbeats say of this rank: it has begun a call, it waits for a call, it has returned from the wait.
  void note_call(ControlGroup& group, const Call& call);
  void note_wait(const ControlGroup& group, const Call& call);
  void note_return();

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Whether a failure is reported within this time.
  bool wait_for_failure(std::chrono::milliseconds time);
  [[noreturn]] void throw_failure(std::string_view group, const Call& call);
  // Reports to all ranks that this one has failed, and ends.
  void abort(std::string_view reason) noexcept;
  [[noreturn]] void give_up(const std::string& message);
  // Which of `ranks` a call waits for, by its number among the collectives of the group: "rank 3 did not come (...)".
  // Where all may have come, for any_call (exchanges are not counted) or inside a library: "it waits for rank 3 (...)".
  static constexpr std::uint64_t any_call = Coordinator::any_call;
  std::string query_absent(const ControlGroup& group, std::span<const int> ranks, std::uint64_t number);
  // For a rank that knows itself that these have not come: "rank 3 did not come (...)".
  std::string describe_absent(std::span<const int> ranks);

  // This rank's work is over, with a fault of its own or without, and its transfers are or are not. Returns when all
  // ranks have left, or soon after one has failed.
  JobEnd leave(const std::string& fault, bool work_failed, bool transfers_over = true);
  // After leave(): this rank has reported its lines. Returns when all have, or soon: a launcher may end all others when
  // the first process ends.
  void await_reports();

 private:
  struct Failure {
    int rank = 0;
    bool lost = false;  // it cannot report itself
    std::string reason;
  };
  struct Awaited {  // the gather that the rank waits for; one at a time
    std::uint64_t group = 0, round = 0;
    std::span<std::byte> into;
    bool done = false;
    std::optional<std::string> refusal;
  };

  struct Contribution {  // to a gather of a group
    std::span<const std::byte> local;
    std::span<std::byte> all;
    bool from_first = false;
  };

  // The rank's side.
  void run_round(ControlGroup& group, const Call& call, const Contribution& contribution);
  void post(FrameKind kind, const Packer& payload);
  template <class Done>
  bool sleep_for(Clock::duration time, const Done& done);
  static std::vector<std::string> lines_of(const std::string& text);
  void fail_with(std::string_view reason, bool unwinds) noexcept;
  void note(const ControlGroup& group, const Call& call, bool is_new, bool inside);
  std::string query(const Query& query, std::span<const int> ranks);
  [[noreturn]] void give_up_gathering(const ControlGroup& group, const Call& call);

  // The thread's.
  void run();
  void wait_for_frames();
  void receive_frames();
  void handle(const Frame& frame);
  void heartbeat();
  void check_coordinator();
  void lose_coordinator(const std::string& reason);
  void report_lines(const std::string& lines) const;
  void report_for_the_rank();
  void exit_if_stuck();
  std::string exit_reason();
  void wake_control_thread();

  const ControlOptions options_;
  FunctionRef<void(std::string_view)> report_;
  std::unique_ptr<Coordinator> coordinator_;  // rank 0
  std::pair<Socket, Socket> wake_;
  std::uint64_t groups_made_ = 0, worlds_made_ = 0;
  std::atomic<bool> gathering_{false};

  std::mutex mutex_;  // guards the members from here to last_check_
  std::condition_variable changed_;
  Link link_;
  std::atomic<bool> failed_{false};
  Failure failure_;
  Clock::time_point failed_at_{};
  std::string local_fault_;
  bool unwinds_ = false;  // the rank is unwinding after its own fault
  Awaited awaited_;
  std::optional<std::string> answer_;
  bool has_left_ = false, ended_ = false, has_reported_ = false, released_ = false, quit_ = false;
  bool ended_in_order_ = false, kills_ = false;
  std::string to_report_;  // lines, from the coordinator; empty once they are reported
  Clock::time_point last_heard_{}, last_heartbeat_{}, last_check_{};

  std::mutex activity_mutex_;
  RankActivity activity_;
  std::string activity_group_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> calls_;  // by group
  Packer news_;                                                 // a heartbeat's, whose memory is kept

  std::thread thread_;
};

}  // namespace tera::control
