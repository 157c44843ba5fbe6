#pragma once
// Starting ranks.

#include <memory>
#include <string>

#include "tera/base/function_ref.h"
#include "tera/comm/comm.h"
#include "tera/comm/thread_comm.h"

namespace tera {

// A rank that has not met the others yet: it first makes the Ops that it will talk through.
class Seat {
 public:
  virtual ~Seat() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Comm> join(Ops& ops) = 0;  // once; the Comm lives no longer than the body
};

// How the body of one rank ended, for processes: the status to leave with, and the fault that it tells itself.
struct RankOutcome {
  int status = 0;
  std::string fault{};  // empty: it has none; another rank may
};
RankOutcome run_process_rank(Seat& seat, FunctionRef<void(Seat&)> body);

// "rank 3: ..."; a message that begins with a rank is about that one, whoever tells it, and stays as it is.
std::string told_by(int rank, const std::string& message);

// For what a rank does once it has joined: a fault is told to all ranks where it leaves `work`, before anything that
// was made outside of it is destroyed. That may take long or wait for the others: memory of a GPU is given back when
// calls under way have ended, and these wait for ranks that have not heard yet.
void tell_faults(Comm& world, FunctionRef<void()> work);

// Runs body once for each rank, each on a thread of its own, and returns when all are done. When one throws, the others
// are woken, and its fault is thrown here with its rank: a UserError stays one, all else becomes an Error. Faults that
// only follow from it are not told; others are, below it.
void run_threads(int ranks, const ThreadCommOptions& options, FunctionRef<void(Seat&)> body);

}  // namespace tera
