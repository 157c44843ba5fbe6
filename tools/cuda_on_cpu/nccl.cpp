// The functions of NCCL that the program calls, for processes of one machine without GPUs. A call is work on its stream
// that moves bytes as long as there are any; ranks see each other's through shared memory.

#include <nccl.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tools/cuda_on_cpu/nccl_communicator.h"
#include "tools/cuda_on_cpu/nccl_error.h"
#include "tools/cuda_on_cpu/nccl_sum.h"
#include "tools/cuda_on_cpu/nccl_work.h"
#include "tools/cuda_on_cpu/stream.h"

using namespace cuda_on_cpu::nccl;

struct ncclComm {};  // only its address means something

namespace {

class LastError {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
  }
  std::string get() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

LastError& last_error() {
  static LastError error;
  return error;
}

// The live communicators' handles: one that was destroyed is refused.
class Handles {
 public:
  ncclComm_t add(std::shared_ptr<Communicator> communicator) {
    const std::lock_guard lock(mutex_);
    auto handle = std::make_unique<ncclComm>();
    const ncclComm_t key = handle.get();
    all_[key] = {std::move(handle), std::move(communicator)};
    return key;
  }
  std::shared_ptr<Communicator> find(ncclComm_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(key);
    if (found == all_.end()) throw Refused{ncclInvalidArgument, "this is no communicator, or not any more"};
    return found->second.communicator;
  }
  std::shared_ptr<Communicator> remove(ncclComm_t key) {
    std::shared_ptr<Communicator> communicator = find(key);
    const std::lock_guard lock(mutex_);
    all_.erase(key);
    return communicator;
  }

 private:
  struct Entry {
    std::unique_ptr<ncclComm> handle;
    std::shared_ptr<Communicator> communicator;
  };
  std::mutex mutex_;
  std::map<ncclComm_t, Entry> all_;
};

Handles& handles() {
  static Handles all;
  return all;
}

template <class Body>
ncclResult_t guarded(const Body& body) {
  try {
    body();
    return ncclSuccess;
  } catch (const Refused& refused) {
    set_last_error(refused.text);
    return refused.result;
  }
}

void check(bool holds, const std::string& text) {
  if (!holds) throw Refused{ncclInvalidArgument, text};
}

// The calls of one NCCL group on one stream.
struct Batch {
  struct Part {
    std::shared_ptr<Communicator> communicator;
    Work work;
    std::uint64_t number = 0;
    bool done = false;
  };
  cudaStream_t stream;
  std::vector<Part> parts;  // one of each communicator

  Work& work_of(const std::shared_ptr<Communicator>& communicator) {
    for (Part& part : parts)
      if (part.communicator == communicator) return part.work;
    return parts.emplace_back(Part{communicator, Work(communicator->rank(), communicator->ranks())}).work;
  }
};

ncclResult_t enqueue(Batch batch) {
  for (Batch::Part& part : batch.parts) part.number = part.communicator->next_number();
  const cudaStream_t stream = batch.stream;
  const cudaError_t status = cuda_on_cpu::enqueue_steps(stream, [all = std::make_shared<Batch>(std::move(batch))] {
    bool done = true;
    for (Batch::Part& part : all->parts) {
      if (!part.done) part.done = part.communicator->progress(part.work, part.number);
      done = done && part.done;
    }
    return done;
  });
  if (status == cudaSuccess) return ncclSuccess;
  set_last_error("a call of NCCL on a stream that is captured into a graph");
  return ncclInvalidUsage;
}

// The calls of a thread since ncclGroupStart.
struct Group {
  int depth = 0;
  ncclResult_t fault = ncclSuccess;
  std::vector<Batch> batches;

  Batch& batch_of(cudaStream_t stream) {
    for (Batch& batch : batches)
      if (batch.stream == stream) return batch;
    return batches.emplace_back(Batch{stream, {}});
  }
};

Group& group() {
  static thread_local Group state;
  return state;
}

struct Arguments {
  const void* in;
  void* out;
  ncclComm_t comm;
  cudaStream_t stream;
  int peer = 0;
  bool sends = true, receives = true;
};

ncclResult_t add(const Call& call, const Arguments& arguments, void (*how)(Work&, const Call&, const Arguments&)) {
  const ncclResult_t result = guarded([&] {
    const std::shared_ptr<Communicator> communicator = handles().find(arguments.comm);
    const std::string name = to_string(call);
    check(size_of(call.type) > 0, name + ": this type of elements is not known");
    check(call.op < 0 || name_of(static_cast<ncclRedOp_t>(call.op)) != nullptr, name + ": unknown reduction");
    check(call.root < communicator->ranks(), name + ": there is no such rank");
    check(arguments.peer >= 0 && arguments.peer < communicator->ranks(),
          name + ": there is no rank " + std::to_string(arguments.peer));
    check(call.count < (std::uint64_t{1} << 48), name + ": so many do not exist");
    check(call.count == 0 || ((!arguments.sends || arguments.in) && (!arguments.receives || arguments.out)),
          name + ": a pointer is null");
    const bool alone = group().depth == 0;
    Batch batch{arguments.stream, {}};
    how((alone ? batch : group().batch_of(arguments.stream)).work_of(communicator), call, arguments);
    if (alone) check(enqueue(std::move(batch)) == ncclSuccess, name + ": its stream is captured into a graph");
  });
  if (result != ncclSuccess && group().fault == ncclSuccess) group().fault = result;
  return result;
}

}  // namespace

void cuda_on_cpu::nccl::set_last_error(const std::string& text) { last_error().set(text); }

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  static thread_local std::string text;
  text = last_error().get();
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return guarded([&] { *id = make_id(); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return guarded([&] {
    *comm = nullptr;
    *comm = handles().add(std::make_shared<Communicator>(id, rank, ranks, [] { return false; }));
    cuda_on_cpu::start_progress_thread();
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t*) {
  return guarded([&] {
    *part = nullptr;
    check(color >= 0 || color == NCCL_SPLIT_NOCOLOR, "a color may not be " + std::to_string(color));
    std::shared_ptr<Communicator> communicator = handles().find(comm)->split(color, key);
    if (communicator) *part = handles().add(std::move(communicator));
  });
}

// What is on streams still ends: it holds the communicator.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return guarded([&] { handles().remove(comm); });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return guarded([&] { handles().remove(comm)->abort(); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return guarded([&] { *error = handles().find(comm)->async_error(); });
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({.kind = Kind::all_reduce, .type = type, .op = op, .count = count}, {in, out, comm, stream},
             [](Work& work, const Call& call, const Arguments& a) { work.add_all_reduce(call, a.in, a.out); });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({.kind = Kind::all_gather, .type = type, .count = count}, {in, out, comm, stream},
             [](Work& work, const Call& call, const Arguments& a) { work.add_all_gather(call, a.in, a.out); });
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return add({.kind = Kind::reduce_scatter, .type = type, .op = op, .count = count}, {in, out, comm, stream},
             [](Work& work, const Call& call, const Arguments& a) { work.add_reduce_scatter(call, a.in, a.out); });
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  Arguments arguments{in, out, comm, stream, root};
  arguments.sends = false;  // only the root's is looked at
  return add({.kind = Kind::broadcast, .type = type, .root = root, .count = count}, arguments,
             [](Work& work, const Call& call, const Arguments& a) { work.add_broadcast(call, a.in, a.out); });
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({.kind = Kind::send, .type = type, .count = count},
             {in, nullptr, comm, stream, peer, /*sends=*/true, /*receives=*/false},
             [](Work& work, const Call& call, const Arguments& a) { work.add_send(call, a.in, a.peer); });
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({.kind = Kind::send, .type = type, .count = count},
             {nullptr, out, comm, stream, peer, /*sends=*/false, /*receives=*/true},
             [](Work& work, const Call& call, const Arguments& a) { work.add_receive(call, a.out, a.peer); });
}

ncclResult_t ncclGroupStart() {
  if (group().depth++ == 0) group().fault = ncclSuccess;
  return ncclSuccess;
}

// A call that was refused takes the whole group with it.
ncclResult_t ncclGroupEnd() {
  Group& state = group();
  if (state.depth == 0) {
    set_last_error("ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  if (--state.depth > 0) return ncclSuccess;
  std::vector<Batch> batches = std::exchange(state.batches, {});
  const ncclResult_t fault = std::exchange(state.fault, ncclSuccess);
  if (fault != ncclSuccess) return fault;
  ncclResult_t result = ncclSuccess;
  for (Batch& batch : batches)
    if (const ncclResult_t status = enqueue(std::move(batch)); status != ncclSuccess) result = status;
  return result;
}

}  // extern "C"
