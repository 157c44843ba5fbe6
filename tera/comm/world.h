#pragma once
// Starting ranks, and the groups that a rank of a mesh belongs to.

#include <memory>

#include "tera/base/function_ref.h"
#include "tera/comm/comm.h"
#include "tera/comm/thread_comm.h"
#include "tera/config/mesh_plan.h"

namespace tera {

// A rank that has not met the others yet: it first makes the Ops that it will talk through.
class Seat {
 public:
  virtual ~Seat() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Comm> join(Ops& ops) = 0;  // once; the Comm lives no longer than the body
};

// Runs body once for each rank, each on a thread of its own, and returns when all are done. When one throws, the others
// are woken, and its fault is thrown here with its rank: a UserError stays one, all else becomes an Error. Faults that
// only follow from it are not told; others are, below it.
void run_threads(int ranks, const ThreadCommOptions& options, FunctionRef<void(Seat&)> body);

// The groups of one rank, split from the world as the plan says.
class Mesh {
 public:
  Mesh(const MeshPlan& plan, Comm& world);

  Comm& world;
  const std::unique_ptr<Comm> tp, cp, dp, dp_cp, pp, ep, etp, edp, embed;
};

}  // namespace tera
