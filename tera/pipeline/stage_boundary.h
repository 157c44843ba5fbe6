#pragma once
// The boundaries between virtual stages: receive and send buffers of activations and gradients, the point-to-point
// transfers to and from other ranks, and every wait for one. A result for the next virtual stage on the same rank is
// written directly to its receive buffer.

#include <span>
#include <vector>

#include "tera/pipeline/stage.h"

namespace tera {

class StageBoundary {
 public:
  // All three outlive it.
  StageBoundary(Ops& ops, const Stage& stage, Arena& buffers);

  void begin(const StagePlan& plan, std::span<const MicroBatch> batch);  // takes the buffers
  void post(const Exchange& exchange);  // each message by itself, in order; waits only without overlap

  // The action's input, once it has arrived: x for F, dy for B and BW. None at the ends of the pipeline and for W.
  Tensor input(const Action& action);
  // Where the action writes y or dx, once the previous result has been sent from there. None at the ends and for W.
  Tensor result(const Action& action);

  void end();  // waits until all results are sent, and frees the buffers

  Shape shape_of(const MicroBatch& mb) const;

 private:
  struct Buffer {
    Tensor tensor;  // [rows,hidden], for the longest microbatch
    Ticket ticket;  // ticket of the latest transfer
  };
  struct Lane {                    // transfers of one chunk, forward or backward
    std::vector<Buffer> incoming;  // a ring of slots: microbatch m uses slot m % slots
    std::size_t slots = 0;         // how many of incoming the plan uses
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
  const StagePlan* plan_ = nullptr;  // the plan that runs, over batch_
  std::span<const MicroBatch> batch_;
};

}  // namespace tera
