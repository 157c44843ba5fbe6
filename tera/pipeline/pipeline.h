#pragma once
// Plays a schedule over a stage's blocks. It owns the three rules that blocks rely on: x until B, dy until W, scratch
// until the end of the call.

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "tera/nn/block.h"
#include "tera/pipeline/schedule.h"
#include "tera/tensor/device.h"

namespace tera {

// Learns when the gradients of a block are complete.
struct GradSink {
  virtual ~GradSink() = default;
  virtual void block_ready(int block) = 0;
};

// The arenas a stage works in: per microbatch in flight one of each lifetime, and two that are empty between actions.
struct StageMemory {
  static StageMemory measuring(const Pools& pools);
  // Real arenas of the sizes that these have measured.
  StageMemory allocate_on(Device& device) const;

  std::deque<Arena> f_to_b, f_to_w, b_to_w;  // as many as Pools says
  std::unique_ptr<Arena> replay, scratch;
};

class Pipeline {
 public:
  // Activations are [T,hidden] of this dtype at every block's border.
  Pipeline(Ops& ops, std::span<const std::unique_ptr<Block>> blocks, std::int64_t hidden, DType dtype,
           StageMemory& memory);

  void step(std::span<const Action> schedule, std::span<const MicroBatch> batch, GradSink& grads);
  void step(std::span<const Action> schedule, std::span<const MicroBatch> batch);  // nobody waits for single gradients
  // Forward only, keeping nothing: evaluation, logits, generation.
  void forward(const MicroBatch& mb);

 private:
  struct Flight {  // one microbatch between its F and its W
    int microbatch = -1;
    Arena *f_to_b = nullptr, *f_to_w = nullptr, *b_to_w = nullptr;
    std::vector<std::unique_ptr<Saved>> saved;  // per block, as are the next two
    std::vector<Tensor> x, dy;
  };
  using Pool = std::vector<Arena*>;

  Flight& flight_of(int microbatch);
  static Arena* take(Pool& pool);
  static void give_back(Pool& pool, Arena*& arena);
  Stash stash_of(const Flight& flight);
  Shape border_shape(const MicroBatch& mb) const;
  void play_f(Flight& flight, const MicroBatch& mb);
  void play_b(Flight& flight, const MicroBatch& mb);
  void play_w(Flight& flight, const MicroBatch& mb, GradSink* grads);
  void play_bw(Flight& flight, const MicroBatch& mb, GradSink* grads);
  void block_b(std::size_t block, Flight& flight, Run& run);
  void block_w(std::size_t block, Flight& flight, Run& run, GradSink* grads);

  Ops& ops_;
  std::span<const std::unique_ptr<Block>> blocks_;
  std::int64_t hidden_;
  DType dtype_;
  StageMemory& memory_;
  Pool free_f_to_b_, free_f_to_w_, free_b_to_w_;
  std::vector<Flight> flights_;
};

}  // namespace tera
