#pragma once
// One block on the CPU backend, played as the engine plays it: rehearsed with PlanOps on measuring arenas, then run on
// real ones of exactly the measured sizes. Two microbatches, each with memory of its own, so that any schedule of the
// two can be played.
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
  bool has_loss = false;              // of tokens, beside a y
  std::vector<std::int32_t> offsets;  // documents, instead of equal sequences
  std::int64_t vocab = 29;            // of tokens and targets
  DType compute = DType::f32;
  int threads = 1;
  std::vector<std::string> freeze;
  std::int64_t experts = 0;  // that are counted, as the only layer's that has any
};

class BlockHarness {
 public:
  static constexpr int microbatches = 2;

  explicit BlockHarness(const BlockSetup& setup);

  // Puts the inputs back and clears the gradients.
  void reset();
  // From a reset() on; the schedule names one microbatch or both. Results are then in y(), dx(), gradient().
  void play(const Schedule& schedule);
  // Only F, with the block's loss: sum(y * r) for a fixed random r, or the scaled token losses of a head. In double.
  double loss_of_forward();
  // Only F of microbatch 0, without a reset(); the result is in y(0).
  void forward_only();

  std::vector<float> x(int microbatch) const { return read(flights_[static_cast<std::size_t>(microbatch)].x); }
  void set_x(const std::vector<float>& values);  // of microbatch 0
  const std::vector<float>& y(int microbatch) const { return flights_[static_cast<std::size_t>(microbatch)].y_values; }
  std::vector<float> token_loss(int microbatch) const {
    return read(flights_[static_cast<std::size_t>(microbatch)].mb.token_loss);
  }
  std::vector<float> dx(int microbatch) const { return read(flights_[static_cast<std::size_t>(microbatch)].dx); }

  std::vector<std::int32_t> tokens(int microbatch) const;
  std::vector<std::int32_t> targets(int microbatch) const;

  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  Ops& ops() { return ops_; }
  std::vector<float> value(const Param& param) const { return read(param.value); }
  void set_value(const Param& param, const std::vector<float>& values) { write(values, param.value); }
  std::vector<float> gradient(const Param& param) const { return read(param.grad); }
  // What both microbatches have told of their experts since reset().
  std::vector<std::int32_t> expert_counts() const;
  std::vector<float> aux_losses() const { return read(flights_[0].mb.aux_losses); }
  // Every result of the last play(): outputs, input gradients, parameter gradients, one after the other.
  std::vector<float> everything() const;

  std::size_t planned(Life life) const { return measured_.stash[0][static_cast<std::size_t>(life)].arena.peak(); }
  bool peaks_as_planned() const;
  bool scratch_as_planned() const { return measured_.scratch.arena.peak() == real_.scratch.arena.peak(); }
  bool stashes_are_empty() const;

 private:
  struct Room {
    Arena arena = Arena::measuring();
    std::span<std::byte> bytes;  // none while measuring
  };
  struct Memory {
    Room weights, constants, grads, inputs, replay, scratch;
    std::array<std::array<Room, 3>, microbatches> stash;  // by Life
  };
  struct Flight {
    std::array<Room, 3>* stash = nullptr;
    std::unique_ptr<Saved> saved;
    MicroBatch mb;
    Tensor x, y, dy, dx;          // [T,H]
    std::vector<float> y_values;  // y is overwritten after F
  };
  Room real_room(const Room& measured);
  void make_real();
  void bind(Memory& memory);
  void bind_inputs(Arena& arena);
  void fill_inputs();
  void fill_params();
  void play_on(Ops& ops, const Schedule& schedule);
  void play_f(Ops& ops, Flight& flight);
  void play_b(Ops& ops, Flight& flight);
  void play_w(Ops& ops, Flight& flight);
  Stash stash_of(Flight& flight, Act act);
  void end_call();
  static void spoil(const Room& room);
  void spoil(const Tensor& tensor) const;
  void give_back(Flight& flight, Life life);
  std::vector<float> read(const Tensor& from) const;
  void write(const std::vector<float>& values, const Tensor& to);

  BlockSetup setup_;
  cpu::CpuDevice device_;
  mutable cpu::CpuOps ops_;
  ParamStore params_;
  std::unique_ptr<Block> block_;
  Memory measured_, real_;
  Memory* memory_ = nullptr;  // where everything is bound now
  std::array<Flight, microbatches> flights_;
};

}  // namespace tera::test
