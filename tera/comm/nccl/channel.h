#pragma once
// One NCCL communicator with a stream of its own: calls run one after the other, in the order in which they were made.
// The latest ones are kept in a ring buffer, to know which of them a rank waits for and since when.

#include <array>
#include <span>
#include <string>
#include <vector>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/comm/call.h"
#include "tera/comm/control/control.h"
#include "tera/comm/nccl/nccl_api.h"

namespace tera::nccl {

using control::Control;
using control::ControlGroup;

// A call that was launched on the GPU.
struct Launched {
  cudaEvent_t started = nullptr, done = nullptr;  // its inputs are ready; it is done
  Call call;
  const ControlGroup* group = nullptr;
  std::uint64_t number = 0;  // among the collectives of the group
  static constexpr std::size_t max_peers = 8;
  std::array<int, max_peers> peers{};  // peers of an exchange, ranks of the world
  std::size_t peer_count = 0;          // 0: all ranks of the group
};

class Channel {
 public:
  static constexpr std::size_t calls_kept = 1024;

  // Takes ownership of the communicator.
  Channel(const NcclApi& api, ncclComm_t comm, std::vector<int> members);
  ~Channel();  // not while a call is in flight, unless it was aborted
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const std::vector<int>& members() const { return members_; }  // ranks of the world
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

  // The call that the next one overwrites in the ring buffer, and which must be done before that; 0: none.
  std::uint64_t oldest_kept() const { return calls_ < ring_.size() ? 0 : calls_ + 1 - ring_.size(); }
  // Around a call on the stream, after the waits for its inputs; end() returns the id of its ticket.
  Launched& begin();
  std::uint64_t end();
  cudaEvent_t event_of(std::uint64_t id) const;  // null: that call was done long ago
  // The first call that is not done, by id; 0: none. Only for the thread that makes calls.
  std::uint64_t first_unfinished();
  const Launched& launched(std::uint64_t id) const { return ring_[id % ring_.size()]; }
  std::uint64_t calls() const { return calls_; }

  ncclResult_t async_error() const;
  void abort() noexcept;  // ends calls in flight on this rank; other ranks are not notified
  bool aborted() const { return comm_ == nullptr; }

 private:
  const NcclApi& api_;
  ncclComm_t comm_;
  std::vector<int> members_;
  cudaStream_t stream_ = nullptr;
  std::vector<Launched> ring_;
  std::uint64_t calls_ = 0, finished_ = 0;
};

}  // namespace tera::nccl
