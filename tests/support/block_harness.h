#pragma once
// Runs one block on the CPU backend as the engine does: a rehearsal with PlanOps on measuring arenas, then a run on
// real ones of exactly the measured sizes. There are two microbatches, each with memory of its own, so that any
// schedule of the two can run.
//
// The rules of tera/nn/block.h are enforced: what a block may no longer read (y after F; x, scratch and f_to_b after B;
// all the rest after W) is overwritten by NaN.

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/nn/block.h"
#include "tera/nn/params.h"
#include "tera/pipeline/schedule.h"

namespace tera::test {

using MakeBlock = std::function<std::unique_ptr<Block>(ParamStore&)>;

struct BlockSetup {
  MakeBlock make;
  std::int64_t batch = 2, seq = 9, hidden = 24;
  bool has_x = true, has_y = true;    // an embedding has no x, a head no y
  bool has_loss = false;              // token losses beside a y
  std::vector<std::int32_t> offsets;  // documents, instead of equal sequences
  std::int64_t vocab = 29;            // tokens and targets are below this
  DType compute = DType::f32;
  int threads = 1;
  std::vector<std::string> freeze;
  std::int64_t experts = 0;  // whose choices are counted; no other layer has experts
};

class BlockHarness {
 public:
  static constexpr int microbatches = 2;

  explicit BlockHarness(const BlockSetup& setup);

  // Puts the inputs back and clears the gradients.
  void reset();
  // Executes the schedule of one microbatch or both after a reset(). Results are then in y(), dx(), gradient().
  void execute(const Schedule& schedule);
  // Runs only F and returns the block's loss in double: sum(y * r) for a fixed random r, or the scaled token losses of
  // a head.
  double loss_of_forward();
  // Runs only F of microbatch 0, without a reset(); the result is in y(0).
  void forward_only();

  std::vector<float> x(int microbatch) const { return read(states_[static_cast<std::size_t>(microbatch)].x); }
  void set_x(const std::vector<float>& values);  // x of microbatch 0
  const std::vector<float>& y(int microbatch) const { return states_[static_cast<std::size_t>(microbatch)].y_values; }
  std::vector<float> token_loss(int microbatch) const {
    return read(states_[static_cast<std::size_t>(microbatch)].mb.token_loss);
  }
  std::vector<float> dx(int microbatch) const { return read(states_[static_cast<std::size_t>(microbatch)].dx); }

  std::vector<std::int32_t> tokens(int microbatch) const;
  std::vector<std::int32_t> targets(int microbatch) const;

  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  Ops& ops() { return ops_; }
  std::vector<float> value(const Param& param) const { return read(param.value); }
  void set_value(const Param& param, const std::vector<float>& values) { write(values, param.value); }
  std::vector<float> gradient(const Param& param) const { return read(param.grad); }
  // Expert counts of both microbatches since reset().
  std::vector<std::int32_t> expert_counts() const;
  std::vector<float> aux_losses() const { return read(states_[0].mb.aux_losses); }
  // Every result of the last execute(): outputs, input gradients, parameter gradients, one after the other.
  std::vector<float> everything() const;

  std::size_t planned(Life life) const { return measured_.stash[0][static_cast<std::size_t>(life)].arena.peak(); }
  bool peaks_as_planned() const;
  bool scratch_as_planned() const { return measured_.scratch.arena.peak() == real_.scratch.arena.peak(); }
  bool stashes_are_empty() const;

 private:
  struct Region {
    Arena arena = Arena::measuring();
    std::span<std::byte> bytes;  // none while measuring
  };
  struct Memory {
    Region weights, constants, grads, inputs, replay, scratch;
    std::array<std::array<Region, 3>, microbatches> stash;  // by Life
  };
  struct MicrobatchState {
    std::array<Region, 3>* stash = nullptr;
    std::unique_ptr<Saved> saved;
    MicroBatch mb;
    Tensor x, y, dy, dx;          // [T,H]
    std::vector<float> y_values;  // y is overwritten after F
  };
  Region allocate_region(const Region& measured);
  void make_real();
  void bind(Memory& memory);
  void bind_inputs(Arena& arena);
  void fill_inputs();
  void fill_params();
  void execute_on(Ops& ops, const Schedule& schedule);
  void run_f(Ops& ops, MicrobatchState& state);
  void run_b(Ops& ops, MicrobatchState& state);
  void run_w(Ops& ops, MicrobatchState& state);
  Stash stash_of(MicrobatchState& state, Act act);
  void end_call();
  static void spoil(const Region& region);
  void spoil(const Tensor& tensor) const;
  void give_back(MicrobatchState& state, Life life);
  std::vector<float> read(const Tensor& from) const;
  void write(const std::vector<float>& values, const Tensor& to);

  BlockSetup setup_;
  cpu::CpuDevice device_;
  mutable cpu::CpuOps ops_;
  ParamStore params_;
  std::unique_ptr<Block> block_;
  Memory measured_, real_;
  Memory* memory_ = nullptr;  // where everything is bound now
  std::array<MicrobatchState, microbatches> states_;
};

}  // namespace tera::test
