#pragma once
// One training step of one rank: its part of the model, its memory, the engine, the sums over ranks and the optimizer,
// put together. Use it as it is, or take its parts and write a loop of your own (docs/library.md).
//
//   TrainingStep step(setup, rank);
//   step.bind(backend, world);           // rehearses, allocates once, meets the other ranks, draws the initial weights
//   step.load(i, batch, scale) ...       // every microbatch of this rank
//   step.run(lr);                        // or forward_backward(), look at the gradients, update(lr)

#include <array>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "tera/checkpoint/checkpoint.h"
#include "tera/config/setup.h"
#include "tera/data/batch_loader.h"
#include "tera/data/context_split.h"
#include "tera/models/build.h"
#include "tera/optim/data_parallel.h"
#include "tera/optim/expert_load.h"
#include "tera/optim/loss_scale.h"
#include "tera/optim/optimizer.h"
#include "tera/pipeline/pipeline.h"
#include "tera/train/backend.h"
#include "tera/train/memory_plan.h"
#include "tera/train/rank_layout.h"

namespace tera {

class PlanOps;

class TrainingStep {
 public:
  explicit TrainingStep(const Setup& setup, int rank = 0);
  TrainingStep(const Setup& setup, int rank, StageSchedules schedules);  // those of the rank's stage

  // The step, rehearsed without memory: exact for everything that bind() allocates.
  MemoryPlan plan(const WorkspaceRules& rules);
  // FLOPs (two per multiply-add) of matrix products and attention in one step, counted in the rehearsal.
  double planned_flops() const { return planned_flops_; }

  // world: all ranks of the setup, working through backend.ops; it outlives the step.
  void bind(Backend& backend, Comm& world);
  void bind(Backend& backend);  // a world of one

  // Copies a microbatch to the device; over context-parallel ranks all give the same, and each takes its own rows.
  // Where microbatches have degrees of their own (ParallelShape::dynamic_cp), the number of rows says which: as many as
  // one rank has, or as 2 have, ...; the ranks that share them give the same. scale: what a token's loss counts in the
  // gradient; aux_scale: and what the microbatch's auxiliary losses do, where the model has any; ahead_scales: and what
  // the losses of rows ahead do, by depth. Where nothing is learned of it (scale 0) it may come without rows ahead.
  void load(std::int64_t microbatch, const BatchSpans& host, float scale, float aux_scale = 0,
            std::span<const float> ahead_scales = {});
  // Gradients of all loaded microbatches accumulate, and are summed over the ranks; those of an earlier call are gone.
  // While the batch size grows, or where documents are dealt, only the first of them are played.
  void forward_backward();
  void forward_backward(std::int64_t microbatches);
  // Clips, updates.
  void update(const LearningRates& rates);
  void update(double lr) { update({lr, lr}); }
  // Both, of so many microbatches. Where the device can, from the second time on as one recording of all calls (a CUDA
  // graph), which computes the same bits.
  void run(std::int64_t microbatches, const LearningRates& rates);
  void run(double lr) { run(setup_.batch.num_microbatches, {lr, lr}); }
  // How run() goes, once when it is known; otherwise empty.
  std::string take_remark() { return std::exchange(remark_, {}); }
  // With overlap_param_gather, weights may still be on their way after update(); blocks wait for them, others call
  // this.
  void wait_for_weights() { replicas_->wait_for_weights(); }
  // Sum of the token losses of all loaded microbatches and ranks, without gradients; and how many ranks want to stop.
  struct Evaluated {
    double loss_sum = 0, stop = 0;
  };
  Evaluated evaluate(bool stop = false);

  // What this rank keeps of the model and the optimizer. Valid while bound.
  ModelState state() const { return {list_tensors(setup_.model), params_, &optimizer_}; }
  // Goes on from a checkpoint of any layout; all ranks do. UserError where it does not suit the model.
  void load_checkpoint(const Checkpoint& checkpoint, Checkpoint::Take take,
                       const std::optional<VerifyShare>& verified = {});

  // For the log: sum of token losses over all microbatches and ranks, and the norm of the gradient. read_back() only
  // starts to bring them to the host, so that the next step can be enqueued before result() waits for them; at most two
  // at a time. Every rank gives its votes, and all learn of all at the same step.
  struct Votes {
    bool stop = false;     // the run should end
    bool written = false;  // this rank's part of a checkpoint is on the disk
  };
  struct Reading {
    Ticket ticket;
    std::size_t slot = 0;
  };
  struct Result {
    double loss_sum = 0;
    double stop = 0, written = 0;  // how many ranks voted so
    float grad_norm = 0;
    ScaleReading scaling;  // after the step, where losses are scaled
    // Of a model with experts: MicroBatch::aux_losses and expert_counts of all microbatches and ranks. The counts are
    // those of the reading, and stand until the next but one.
    std::array<double, static_cast<std::size_t>(AuxLoss::count)> aux_losses{};
    std::span<const std::int32_t> expert_counts{};
    std::array<double, most_mtp_layers> ahead_losses{};  // as loss_sum, by depth
    bool skipped() const { return scaling.skipped != 0; }
  };
  Reading read_back(const Votes& votes);
  Reading read_back() { return read_back(Votes{}); }
  Result result(const Reading& reading);

  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  std::int64_t count_parameters() const { return whole_.parameters; }  // of the whole model
  const RankLayout& layout() const { return layout_; }
  // What this rank sends in a step, group by group in the order of Groups::all(), as rehearsed.
  const std::vector<Traffic>& planned_traffic() const { return planned_traffic_; }
  const MemoryPlan& memory() const { return memory_.plan(); }
  const StageMemory& stage_memory() const { return stage_memory_; }  // what a step has really taken
  Ops& ops() { return *ops_; }
  // The optimizer's, and the loss scale after them where it changes; of steps whose result() was asked for.
  std::int64_t updates() const { return updates_; }
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }
  const LossScaler* scaler() const { return scaler_ ? &*scaler_ : nullptr; }  // none: losses are not scaled

 private:
  struct Inputs {  // of one microbatch
    Tensor tokens, targets, positions, rows, token_loss;
    Tensor offsets;  // i32 [T+1]: room for those of packed documents, where there are such; of all rows
    AllRows all;     // where ranks share them
    Tensor ahead_tokens, ahead_targets, ahead_loss;  // [depths,T], where layers predict further ahead
    std::vector<RowsAhead> ahead;                    // of these, by depth
  };
  void make_context_cuts();
  void bind_inputs(Arena& arena);
  AllRows take_all_rows(Arena& arena) const;
  void load_all_rows(std::size_t index, const BatchSpans& host, const ContextCut& cut);
  void lend_rows(std::size_t index, std::size_t degree, std::int64_t documents);
  void play_degrees(Ops& ops, Pipeline& pipeline, DataParallel& replicas);
  void bind_rows_ahead(Arena& arena, std::int64_t index);
  Tensor aux_row(const Tensor& weights, std::int64_t index) const;
  Tensor ahead_row(const Tensor& weights, std::int64_t depth, std::int64_t index) const;
  void load_rows_ahead(std::int64_t index, const BatchSpans& own, std::span<const float> scales);
  Tensor ahead_sum(std::int64_t depth) const;
  MicroBatch microbatch(std::int64_t index, bool training) const;
  DataParallel make_data_parallel(Ops& ops);
  void play(Ops& ops, Pipeline& pipeline, DataParallel& replicas, std::int64_t microbatches);
  void play_update(Ops& ops, DataParallel& replicas);
  void prepare_update(const LearningRates& rates);
  void allocate_expert_numbers(Device& device);
  std::span<std::int32_t> overflow_slot(std::size_t slot) const;
  void check_expert_rows(std::size_t slot) const;
  void sum_losses(Ops& ops, std::size_t microbatches);
  void sum_losses_ahead(Ops& ops, std::size_t microbatches);
  void sum_expert_load(Ops& ops);
  void play_evaluation(Ops& ops, Pipeline& pipeline, DataParallel& replicas);
  MemoryPlan rehearse(PlanOps& ops);
  void reserve_tickets(const PlanOps& rehearsal, Comm& world);
  void make_engine();
  void agree_on_traffic();
  void start_scaling(const std::optional<LossScale>& kept = {});
  std::string why_not_recorded() const;
  void record(const std::function<void()>& calls);

  Setup setup_;
  DType compute_;
  RankLayout layout_;
  RankLayout::WholeModel whole_;
  ParamStore params_;
  std::vector<Blocks> chunks_;
  std::optional<LossScaler> scaler_;
  Optimizer optimizer_;
  std::optional<ExpertLoad> expert_load_;
  Stage stage_;

  std::vector<Inputs> inputs_;
  std::vector<ContextCut> context_;  // of a microbatch on the host, for each of layout_.degrees
  std::vector<MicroBatch> batch_, evaluation_batch_;
  // f32 [microbatches]: what a token's loss counts; then, for some models, aux losses, and losses ahead by depth
  Tensor loss_weights_;
  Tensor loss_scales_;  // the same with the loss scale; without one, the same tensor
  Tensor loss_sum_;     // f64 [3]: losses, and the votes as in Result; of some models auxiliary losses, losses ahead
  Tensor expert_overflow_, all_overflows_;  // i32 [1], [ranks], where rows of experts may find no room
  std::span<std::int32_t> read_overflows_;  // the same as read, in slots; host memory that the device writes
  std::span<std::int32_t> expert_offsets_;  // likewise, where rows travel to experts
  Tensor agreement_;                        // i64 [ranks]
  std::span<Result> read_back_;             // host memory that the device writes
  std::span<std::int32_t> read_counts_;     // likewise, of choices of experts
  std::size_t readings_ = 0;
  PlannedMemory memory_;
  StageMemory stage_memory_;
  std::unique_ptr<Comm> alone_;  // the world of one
  std::unique_ptr<DataParallel> replicas_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<Traffic> planned_traffic_;
  Ops* ops_ = nullptr;
  std::int64_t updates_ = 0;
  std::optional<LossScale> loss_scale_;
  enum class Recorded : std::uint8_t { not_yet, yes, never } recorded_ = Recorded::never;
  bool played_whole_ = false;             // call by call, with all microbatches
  std::unique_ptr<Recording> recording_;  // of such a step
  std::string remark_;
  double planned_flops_ = 0;
};

// Model FLOPs per token, forward and backward: 6 per parameter of a matrix product (output head in, input embedding
// out) and 6 * L * S * heads * head_dim for causal attention, where head_dim is the mean of what scores and values
// have. A layer that predicts further ahead counts as Megatron-LM has it: the layer, another head, its projection, and
// 3 values a channel for its norms.
double model_flops_per_token(const ModelShape& model, std::int64_t seq_length);

}  // namespace tera
