#pragma once
// The messages that calls of NCCL send and receive, and their progress. Calls of one group progress together: between
// two ranks their messages are in the order of the calls, messages of different pairs do not wait for each other.

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tools/cuda_on_cpu/nccl_rendezvous.h"

namespace cuda_on_cpu::nccl {

enum class Kind : std::int32_t { all_reduce, all_gather, reduce_scatter, broadcast, send };

// A call as both ends of a message must have made it. Each message begins with it.
struct Call {
  Kind kind;
  ncclDataType_t type;
  std::int32_t op = -1;    // ncclRedOp_t, of reductions
  std::int32_t root = -1;  // rank that broadcasts; -1: no broadcast
  std::uint64_t count = 0;
  std::uint64_t padding = 0;

  bool operator==(const Call&) const = default;
};
std::string to_string(const Call& call);

class Work {
 public:
  Work(int rank, int ranks) : rank_(rank), outgoing_(ranks), incoming_(ranks) {}
  Work(Work&&) = default;  // Messages and sums know each other by address; those stay.
  Work& operator=(Work&&) = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() = default;

  // `in` and `out` as in the functions of NCCL.
  void add_all_reduce(const Call& call, const void* in, void* out);
  void add_all_gather(const Call& call, const void* in, void* out);
  void add_reduce_scatter(const Call& call, const void* in, void* out);
  void add_broadcast(const Call& call, const void* in, void* out);
  void add_send(const Call& call, const void* in, int peer);
  void add_receive(const Call& call, void* out, int peer);

  // Moves the bytes that can be moved now; whether there were any.
  bool progress(Rendezvous& rendezvous);
  bool done() const;
  const std::string& fault() const { return fault_; }  // not empty: a message of another call came, nothing goes on

 private:
  struct Outgoing {
    Call call;
    const std::byte* data;
    std::size_t bytes;
    const std::size_t* ready = nullptr;  // how many bytes of the data there are; null: all
    bool until_taken = false;            // not done before the other rank has all of it
    std::size_t written = 0;             // bytes of the whole message
  };
  struct Incoming {
    Call call;
    std::byte* data;  // null: a reduction reads it
    std::size_t bytes;
    bool begun = false;
    std::size_t taken = 0;  // bytes of the data
  };
  struct Copy {
    const void* from;
    void* to;
    std::size_t bytes;
  };
  // The reduction of all ranks' contributions to one part of a tensor, in the order of ranks.
  struct Sum {
    Call call;
    const std::byte* local;
    std::byte* result;
    std::size_t bytes, done = 0;
    std::vector<Incoming*> parts;  // by rank; null: this one
  };

  int ranks() const { return static_cast<int>(outgoing_.size()); }
  void expect(int from, const Call& call, void* data, std::size_t bytes) {
    incoming_[from].push_back({call, static_cast<std::byte*>(data), bytes});
  }
  Sum& add_sum(const Call& call, const std::byte* local, std::byte* result, std::size_t bytes);
  bool write(Outgoing& message, Pipe& pipe);
  bool read(Incoming& message, Pipe& pipe, int from);
  bool progress(Sum& sum, Rendezvous& rendezvous);
  bool send_to(int peer, Rendezvous& rendezvous);
  bool receive_from(int peer, Rendezvous& rendezvous);

  int rank_;
  bool copied_ = false;
  std::vector<Copy> copies_;
  std::vector<std::deque<Outgoing>> outgoing_;  // by rank
  std::vector<std::deque<Incoming>> incoming_;
  std::deque<Sum> sums_;
  std::string fault_;
};

}  // namespace cuda_on_cpu::nccl
