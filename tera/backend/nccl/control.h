#pragma once
// What ranks tell each other on the host while a library of the GPU moves their tensors: small things that groups
// gather, what each of them does, that one has failed, and that all are done. A rank has one connection, to the hub on
// rank 0, and a thread that answers while the rank itself is stuck. docs/decisions/control-plane.md says why.

#include <atomic>
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

#include "tera/backend/nccl/hub.h"
#include "tera/backend/nccl/rendezvous.h"
#include "tera/base/function_ref.h"
#include "tera/comm/call.h"

namespace tera::nccl {

struct ControlOptions {
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{600'000};  // of every wait
  // A rank whose thread says nothing for so long is stopped or unreachable; no longer than the timeout. The hub itself
  // is given a quarter more.
  std::chrono::milliseconds quiet{8'000};
  // After a failure: a rank that does not leave within this is stuck in a call that nobody can end, and its process
  // ends with it. Quiet and grace together: whoever is stopped, all others have ended within 15 s.
  std::chrono::milliseconds grace{3'000};
  // The same for a rank that has told its own fault: it gives back memory, or waits for files that it writes.
  std::chrono::milliseconds time_to_unwind{60'000};
  bool lost_is_an_error = false;  // who was lost is told by the first rank's exception, and faults by somebody else
};

// A group as its members know it.
struct ControlGroup {
  std::string name{};
  std::uint64_t id = 0;        // the same on all members, and no other group's
  std::vector<int> members{};  // ranks of the world
  int rank = 0;                // of this process, in the group
  std::uint64_t rounds = 0;    // of gathering
  std::uint64_t calls = 0;     // collectives that were handed to the GPU

  int size() const { return static_cast<int>(members.size()); }
};

class Control {
 public:
  // What this rank has to tell is returned by leave(), or told by `tell` where the rank is long in leaving.
  Control(Links links, const ControlOptions& options, FunctionRef<void(std::string_view)> tell);
  ~Control();  // after leave
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return options_.rank; }  // of the world
  int size() const { return options_.size; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  ControlGroup world();  // a new group each time; all ranks ask as often
  // Every member brings as many bytes, and has those of all, in order of the group, when this returns.
  void gather(ControlGroup& group, const Call& call, std::span<const std::byte> own, std::span<std::byte> all);
  // What the first of the group has in these bytes, all have there when this returns.
  void take_from_first(ControlGroup& group, const Call& call, std::span<std::byte> bytes);
  // Those with this rank's color, by key and then by rank in the group.
  ControlGroup split(ControlGroup& group, int color, int key, std::string name);

  // A call was handed to the GPU, or the rank waits for one, or it has returned from waiting.
  void note_call(ControlGroup& group, const Call& call);
  void note_wait(const ControlGroup& group, const Call& call);
  void note_return();

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Whether the news of a failure come within this time.
  bool wait_for_failure(std::chrono::milliseconds time);
  [[noreturn]] void throw_failure(std::string_view group, const Call& call);
  // This rank has failed, and ends: tells all.
  void abort(std::string_view reason) noexcept;
  [[noreturn]] void give_up(const std::string& message);
  // "rank 3 did not come (...)", of those that a call waits for, whose number among the collectives of the group this
  // is; "it waits for rank 3 (...)" where all may have come: of any_call, which nobody counts, or inside a library.
  static constexpr std::uint64_t any_call = Hub::any_call;
  std::string who_did_not_come(const ControlGroup& group, std::span<const int> ranks, std::uint64_t number);

  // This rank's work is over, with a fault of its own or without. Returns when all ranks' is, or soon after one has
  // failed: the lines that this rank has to tell.
  std::vector<std::string> leave(const std::string& fault, bool work_failed);

 private:
  struct Failure {
    int rank = 0;
    bool lost = false;  // it cannot tell itself
    std::string reason;
  };
  struct Awaited {  // by the rank; one at a time
    std::uint64_t group = 0, round = 0;
    std::span<std::byte> into;
    bool done = false;
    std::optional<std::string> refusal;
  };

  struct Brought {  // to a meeting of a group
    std::span<const std::byte> own;
    std::span<std::byte> all;
    bool of_first = false;
  };

  // The rank's side.
  void meet(ControlGroup& group, const Call& call, const Brought& brought);
  void post(FrameKind kind, const Packer& payload);
  template <class Done>
  bool sleep_for(Clock::duration time, const Done& done);
  static std::vector<std::string> lines_of(const std::string& text);
  void fail_with(std::string_view reason, bool unwinds) noexcept;
  std::string ask(std::uint64_t group, std::uint64_t number, bool gathers, std::span<const int> ranks);
  [[noreturn]] void give_up_gathering(const ControlGroup& group, const Call& call);

  // The thread's.
  void run();
  void wait_for_news();
  void take_news();
  void handle(const Frame& frame);
  void beat();
  void look_for_the_hub();
  void lose_hub(const std::string& reason);
  void tell(const std::string& lines) const;
  void tell_for_the_rank();
  void end_if_stuck();
  std::string why_it_is_ended();
  void wake_thread();

  const ControlOptions options_;
  FunctionRef<void(std::string_view)> tell_;
  std::unique_ptr<Hub> hub_;  // rank 0
  std::pair<Socket, Socket> wake_;
  std::uint64_t groups_made_ = 0, worlds_made_ = 0;
  std::atomic<bool> meeting_{false};  // the rank is gathering

  std::mutex mutex_;  // guards what follows, down to the thread
  std::condition_variable news_;
  Link link_;
  std::atomic<bool> failed_{false};
  Failure failure_;
  Clock::time_point failed_at_{};
  std::string own_fault_;
  bool unwinds_ = false;  // after its own fault
  Awaited awaited_;
  std::optional<std::string> answer_;
  bool has_left_ = false, ended_ = false, quit_ = false;
  std::string to_tell_;  // lines, as the hub says; empty when they are told
  Clock::time_point last_heard_{}, last_beat_{}, last_look_{};

  std::mutex doing_mutex_;
  Doing doing_;
  std::string doing_group_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> calls_;  // by group

  std::thread thread_;
};

}  // namespace tera::nccl
