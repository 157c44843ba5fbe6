#pragma once
// All communicators of this process: who looks after them while the host waits for the GPU, and ends them when a rank
// has failed, so that nobody waits for a call that cannot end.

#include <memory>
#include <string>
#include <vector>

#include "tera/backend/nccl/channel.h"
#include "tera/backend/nccl/marks.h"
#include "tera/comm/comm.h"
#include "tera/comm/timed_calls.h"

namespace tera::nccl {

class NcclWorld final : public cuda::WaitGuard {
 public:
  NcclWorld(Control& control, cuda::CudaOps& ops);
  ~NcclWorld() override;
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  Control& control() { return control_; }
  const NcclApi& api() const { return api_; }

  std::shared_ptr<Channel> open_world(ControlGroup& world);
  // A channel for `part`, which was split from a group: one that there is for the same ranks, or a new one. All ranks
  // of the group call it, those too whose part is one rank: they get none.
  std::shared_ptr<Channel> open_part(ControlGroup& group, Channel& parent, const ControlGroup& part);

  // Of a call to NCCL; the reason is another rank's failure, if news of one come within a moment.
  void check_nccl(ncclResult_t result, const Channel& channel, const ControlGroup& group, const Call& call);
  void check_alive(const ControlGroup& group, const Call& call);
  void check() override;
  // The host waits for the events of a channel.
  void wait(const Channel& channel, std::uint64_t id);
  void abort_all() noexcept;

  // While there are notes, a call is put between two marks on its stream.
  void note_calls(std::vector<TimedCall>* notes);
  std::vector<TimedCall>* notes() const { return notes_; }
  Marks& marks() { return marks_; }

 private:
  void look_closer();
  [[noreturn]] void fail_with(ncclResult_t result, ncclComm_t comm, const std::string& where, const Call& call);
  [[noreturn]] void give_up_waiting(const Launched& launched);
  std::shared_ptr<Channel> keep(ncclComm_t comm, std::vector<int> members);

  Control& control_;
  cuda::CudaOps& ops_;
  NcclApi api_;
  std::vector<std::weak_ptr<Channel>> channels_;
  struct Watched {
    const Channel* channel = nullptr;
    std::uint64_t call = 0;
    Clock::time_point since;
  };
  std::vector<Watched> watched_;  // calls that have started and are not done, one of each channel
  Clock::time_point next_look_{};
  Marks marks_;
  std::vector<TimedCall>* notes_ = nullptr;
};

}  // namespace tera::nccl
