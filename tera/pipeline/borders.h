#pragma once
// Where a rank's virtual stages meet their neighbours: the buffers that activations and gradients cross in, the
// transfers to and from other ranks, and every wait for one. What goes to a neighbour on the same rank is written where
// it will be read.

#include <span>
#include <vector>

#include "tera/pipeline/stage.h"

namespace tera {

class Borders {
 public:
  // All three outlive it.
  Borders(Ops& ops, const Stage& stage, Arena& buffers);

  void begin(const StagePlan& plan, std::span<const MicroBatch> batch);  // takes the buffers
  void post(const Exchange& exchange);  // each message by itself, in order; waits only without overlap

  // What the action reads: x for F, dy for B and BW; when it has arrived. None at the ends of the pipeline and for W.
  Tensor input(const Action& action);
  // Where the action writes y or dx; when the result before has been taken from there. None at the ends and for W.
  Tensor result(const Action& action);

  void end();  // all has been taken; the buffers are given back

  Shape shape_of(const MicroBatch& mb) const;

 private:
  struct Buffer {
    Tensor tensor;  // [rows,hidden], for the longest microbatch
    Ticket ticket;  // of the latest transfer
  };
  struct Lane {                    // of one chunk, forward or backward
    std::vector<Buffer> incoming;  // for more microbatches than are open at a time; by their number, in turn
    std::size_t turns = 0;         // how many of these the plan uses
    Buffer outgoing;
  };

  Lane& lane(int chunk, bool gradient) { return lanes_[static_cast<std::size_t>(2 * chunk + (gradient ? 1 : 0))]; }
  Buffer& incoming(const Message& message);
  Buffer& outgoing(const Message& message);
  bool is_mine(const Message& message) const { return plan_->placement.rank_of(message.from_stage) == plan_->rank; }
  Tensor part(const Buffer& buffer, int microbatch) const;
  void take_buffers(int chunk);

  Ops& ops_;
  const Stage& stage_;
  Arena& arena_;
  std::vector<Lane> lanes_;
  const StagePlan* plan_ = nullptr;  // being played, over
  std::span<const MicroBatch> batch_;
};

}  // namespace tera
