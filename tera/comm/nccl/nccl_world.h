#pragma once
// All NCCL communicators of this process, with a watchdog: while the host waits for the GPU it checks them for errors
// and timeouts, and aborts them when a rank has failed, so that nobody waits for a call that cannot end.

#include <memory>
#include <string>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/comm/nccl/channel.h"
#include "tera/comm/nccl/marks.h"
#include "tera/comm/timed_calls.h"

namespace tera::nccl {

using control::Clock;

class NcclWorld final : public cuda::WaitGuard {
 public:
  NcclWorld(Control& control, cuda::CudaOps& ops);
  ~NcclWorld() override;
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  Control& control() { return control_; }
  const NcclApi& api() const { return api_; }

  std::shared_ptr<Channel> open_world(ControlGroup& world);
  // A channel for `part`, which was split from a group: an existing one of the same ranks, or a new one. All ranks of
  // the group call it; where a part has one rank, that gets none.
  std::shared_ptr<Channel> open_part(ControlGroup& group, Channel& parent, const ControlGroup& part);

  // Throws when a call to NCCL failed; where another rank's failure is reported within a moment, that is the reason.
  void check_nccl(ncclResult_t result, const Channel& channel, const ControlGroup& group, const Call& call);
  void check_alive(const ControlGroup& group, const Call& call);
  void check() override;
  // The host waits for a call of a channel.
  void wait(const Channel& channel, std::uint64_t id);
  void abort_all() noexcept;

  // While notes is not null, every call is timed by an event before and one after it on its stream.
  void note_calls(std::vector<TimedCall>* notes);
  std::vector<TimedCall>* notes() const { return notes_; }
  TimingEvents& timing_events() { return timing_events_; }

 private:
  void check_channels();
  [[noreturn]] void fail_with(ncclResult_t result, ncclComm_t comm, const std::string& where, const Call& call);
  [[noreturn]] void give_up_waiting(const Launched& launched);
  std::shared_ptr<Channel> register_channel(ncclComm_t comm, std::vector<int> members);

  Control& control_;
  cuda::CudaOps& ops_;
  NcclApi api_;
  std::vector<std::weak_ptr<Channel>> channels_;
  struct Watched {
    const Channel* channel = nullptr;
    std::uint64_t call = 0;
    Clock::time_point since;
  };
  std::vector<Watched> watched_;  // the first call of each channel that has started and is not done
  Clock::time_point next_check_{};
  TimingEvents timing_events_;
  std::vector<TimedCall>* notes_ = nullptr;
};

}  // namespace tera::nccl
