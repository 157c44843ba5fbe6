#pragma once
// One rank's end of a communicator: its work is done in the order of the calls, whatever streams they came on.

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "tools/cuda_on_cpu/nccl_rendezvous.h"
#include "tools/cuda_on_cpu/nccl_work.h"

namespace cuda_on_cpu::nccl {

class Communicator {
 public:
  // Returns when all ranks have arrived.
  Communicator(const ncclUniqueId& id, int rank, int ranks, const std::function<bool()>& gives_up);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // A collective; null where the color is NCCL_SPLIT_NOCOLOR.
  std::shared_ptr<Communicator> split(int color, int key);

  // The sequence number of a call among those of this communicator.
  std::uint64_t next_number() { return issued_++; }
  // True: done, or aborted. Does not wait.
  bool progress(Work& work, std::uint64_t number);

  // No memory of a call is touched after it.
  void abort();
  ncclResult_t async_error() const { return error_; }

 private:
  int rank_, ranks_;
  Rendezvous rendezvous_;
  std::uint64_t splits_ = 0;
  std::atomic<std::uint64_t> issued_ = 0;
  std::mutex mutex_;  // guards the members below; held for as long as it takes to move what is there
  std::uint64_t finished_ = 0;
  std::atomic<bool> aborted_ = false;
  std::atomic<ncclResult_t> error_ = ncclSuccess;
};

// Sets the text of ncclGetLastError.
void set_last_error(const std::string& text);

}  // namespace cuda_on_cpu::nccl
