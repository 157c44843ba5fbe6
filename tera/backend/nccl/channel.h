#pragma once
// One communicator of NCCL with a stream of its own: calls go one after the other, in the order in which they were
// made. The last ones are remembered, to know which of them a rank waits for and since when.

#include <array>
#include <span>
#include <string>
#include <vector>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/nccl/control.h"
#include "tera/backend/nccl/nccl_api.h"
#include "tera/comm/call.h"

namespace tera::nccl {

// A call that was handed to the GPU.
struct Launched {
  cudaEvent_t started = nullptr, done = nullptr;  // what it waits for is there; it is done
  Call call;
  const ControlGroup* group = nullptr;
  std::uint64_t number = 0;  // among the collectives of the group
  static constexpr std::size_t most_peers = 8;
  std::array<int, most_peers> peers{};  // of an exchange, ranks of the world
  std::size_t peer_count = 0;           // 0: all of the group
};

class Channel {
 public:
  static constexpr std::size_t calls_kept = 1024;

  // Takes the communicator over.
  Channel(const NcclApi& api, ncclComm_t comm, std::vector<int> members);
  ~Channel();  // not while a call is under way, unless it was aborted
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const std::vector<int>& members() const { return members_; }  // ranks of the world
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

  // The call whose place the next one takes, which must be done before that; 0: there is room.
  std::uint64_t oldest_kept() const { return calls_ < ring_.size() ? 0 : calls_ + 1 - ring_.size(); }
  // A call begins on the stream, behind what was waited for there; id of its ticket.
  Launched& begin();
  std::uint64_t end();
  cudaEvent_t event_of(std::uint64_t id) const;  // null: that call was done long ago
  // The first call that is under way, by id; 0: none. May be asked at any time by the thread that makes calls.
  std::uint64_t first_open();
  const Launched& launched(std::uint64_t id) const { return ring_[id % ring_.size()]; }
  std::uint64_t calls() const { return calls_; }

  ncclResult_t async_error() const;
  void abort() noexcept;  // ends what is under way; others do not hear of it
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
