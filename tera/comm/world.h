#pragma once
// Starts ranks, and reports how they ended.

#include <memory>
#include <string>

#include "tera/base/function_ref.h"
#include "tera/comm/comm.h"
#include "tera/comm/thread_comm.h"

namespace tera {

// A rank before it joins the world: it first makes the Ops that its Comm works through.
class RankHandle {
 public:
  virtual ~RankHandle() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Comm> join(Ops& ops) = 0;  // once; the Comm lives no longer than the body
};

// UserError where so many processes cannot work together on such Ops: reductions on CPUs have a limit, NCCL has none.
void check_processes(int processes, const OpsTraits& traits);

// How the body of one rank ended, for processes: the exit status, and the fault that the rank reports itself.
struct RankOutcome {
  int status = 0;
  std::string fault{};  // empty: none of its own; another rank may have failed
};
RankOutcome run_process_rank(RankHandle& rank_handle, FunctionRef<void(RankHandle&)> body);

// "rank 3: ..."; a message that begins with a rank is about that one, whichever reports it, and stays as it is.
std::string report_of(int rank, const std::string& message);

// Runs the work of a rank that has joined: an exception aborts the world where it leaves `work`, before anything that
// was made outside of it is destroyed. Destruction may take long or wait for the others: memory of a GPU is freed when
// calls in flight have ended, and these wait for ranks that do not know of the failure yet.
void report_faults(Comm& world, FunctionRef<void()> work);

// Runs body once for each rank, each on a thread of its own, and returns when all are done. When one throws, the others
// are woken, and its fault is thrown here with its rank: a UserError stays one, all else becomes an Error. Faults that
// only follow from it are left out; independent ones are appended.
void run_threads(int ranks, const ThreadCommOptions& options, FunctionRef<void(RankHandle&)> body);

}  // namespace tera
