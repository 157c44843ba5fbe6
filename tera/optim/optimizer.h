#pragma once
// Gradient clipping and the update by a rule (rules/rule.h), over the flat ranges of the parameter store. All that
// changes per step stays in device memory; the host only writes the learning rate and reads the norm for the log.

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/config/sections/optimizer.h"
#include "tera/nn/params.h"
#include "tera/optim/rules/rule.h"

namespace tera {

class LossScaler;
class Ops;

// The rates of one step. With dynamic loss scaling the host may not know yet whether the step before was skipped; a
// skipped step does not count in the schedule.
struct LearningRates {
  LearningRates(double lr = 0) : LearningRates(lr, lr) {}  // NOLINT(google-explicit-constructor): both are the same
  LearningRates(double update, double skip) : after_update(update), after_skip(skip) {}
  double after_update, after_skip;
};

// How the gradient norm spans ranks: each part of each parameter is counted once, wherever it is, and all sums of
// squares are added in one order.
struct NormScope {
  Comm* world = nullptr;                      // none: this rank has all
  ByKind<bool> counts{true, true};            // this rank's gradients count; false where another replica has the same
  std::vector<std::string> parts_of_model{};  // norm_keys() of the global model; empty: of the store
};

// A name for every trained part, in the order in which their sums of squares are added. Parts of an expert parameter
// have one name, the same on ranks with other experts, so that their sums are added by the all-reduce.
std::vector<std::string> norm_keys(const ParamStore& params);

class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, ParamStore& params);

  // After the layout of the parameters is fixed.
  void span_ranks(NormScope scope) { scope_ = std::move(scope); }

  // Gradients come multiplied by a loss scale; steps in which they overflow are skipped and not counted as updates.
  void scale_with(const LossScaler& scaler) { scaler_ = &scaler; }

  // Flags on the device, f32 [1], the same on all ranks: one that is not finite skips the step. They need a scaler,
  // which counts the steps that are not skipped.
  void veto_with(std::vector<Tensor> flags) { vetoes_ = std::move(flags); }

  // Gradients are not cleared after a step: the first of the next one overwrites them (DataParallel).
  void leave_gradients() { clears_ = false; }

  // Memory for moments and scalars; once with a measuring arena, once with a real one.
  void bind(Arena& state);

  // Copies an update's scalars to the device. update counts from 1, and is ignored with a loss scale, whose state keeps
  // that count.
  void prepare(Ops& ops, const LearningRates& rates, std::int64_t update);
  // Clips, updates the weights of this rank's shards and clears their gradients, unless leave_gradients(); the same
  // calls every time.
  void step(Ops& ops);

  const Tensor& grad_norm() const { return norm_; }  // f32 [1], before clipping
  Tensor grad_factor() const;                        // f32 [1]: not finite, and the step was skipped

  // State of every trained element; names as in PyTorch.
  struct Moment {
    std::string name;
    DType dtype;
    Tensor values;  // [elements of this rank's shards]; none before bind()
  };
  std::vector<Moment> moments() const;

 private:
  struct Piece {  // one or more parts of a parameter, as far as they are in this rank's shard
    Tensor grad;
    std::int64_t slot;  // index in sums_
  };
  void find_pieces();
  void write_scalars(Ops& ops, double lr, std::int64_t update);
  void write_rates(Ops& ops, const LearningRates& rates);
  void clip(Ops& ops);
  void apply_vetoes(Ops& ops);
  void count_step(Ops& ops);
  void update(Ops& ops, const ParamStore::Group& group);

  OptimizerConfig config_;
  ParamStore& params_;
  std::unique_ptr<UpdateRule> rule_;
  NormScope scope_;
  const LossScaler* scaler_ = nullptr;
  bool clears_ = true;
  std::vector<Tensor> vetoes_;      // flags
  std::vector<Tensor> factor_sum_;  // grad_factor, then the flags
  std::vector<Piece> pieces_;
  std::int64_t slots_ = 0;
  std::array<Tensor, UpdateRule::max_states> states_;  // [elements of this rank's shards]: what the rule keeps
  Tensor scalars_;                                     // f32 [StepScalar::count]
  Tensor rates_;                                       // f32 [2], with a loss scale: LearningRates
  Tensor sums_;                                        // f64 [trained parts of the model]
  Tensor norm_;                                        // f32 [1]
};

}  // namespace tera
