#pragma once
// One training step of one rank, with gradient accumulation over its microbatches: its shard of the model, its memory
// plan, the pipeline engine, gradient reduction over replicas and the optimizer, put together. Use it as it is, or take
// its parts and write a loop of your own (docs/library.md).
//
//   TrainingStep step(setup, rank);
//   step.bind(backend, world);           // rehearses, allocates once, joins the other ranks, draws the initial weights
//   step.load(i, batch, scale) ...       // every microbatch of this rank
//   step.run(lr);                        // alternative: forward_backward(), look at the gradients, update(lr)

#include <array>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "tera/checkpoint/checkpoint.h"
#include "tera/config/setup.h"
#include "tera/data/batching/batch_loader.h"
#include "tera/data/batching/context_split.h"
#include "tera/models/build.h"
#include "tera/optim/data_parallel.h"
#include "tera/optim/expert_load.h"
#include "tera/optim/loss_scale.h"
#include "tera/optim/optimizer.h"
#include "tera/pipeline/pipeline.h"
#include "tera/plan/memory_plan.h"
#include "tera/train/backend.h"
#include "tera/train/rank_layout.h"

namespace tera {

class PlanOps;

class TrainingStep {
 public:
  explicit TrainingStep(const Setup& setup, int rank = 0);
  TrainingStep(const Setup& setup, int rank, StageSchedules schedules);  // schedules: of the rank's stage

  // The step, rehearsed without memory: exact for everything that bind() allocates.
  MemoryPlan plan(const WorkspaceRules& rules);
  // FLOPs (two per multiply-add) of GEMMs and attention in one step, counted in the rehearsal.
  double planned_flops() const { return planned_flops_; }

  // world: the communicator of all ranks of the setup, on backend.ops; it outlives the step.
  void bind(Backend& backend, Comm& world);
  void bind(Backend& backend);  // a world of one

  // Copies a microbatch to the device. Under context parallelism all ranks give the full sequences, and each uploads
  // its own zigzag chunks. With dynamic context parallelism (ParallelShape::dynamic_cp) the number of rows tells the
  // degree: as many as one rank has, or as 2 have, ...; the ranks that share them give the same rows. The scales are
  // the weights in the gradient: `scale` of a token's loss, `aux_scale` of the microbatch's auxiliary losses, where the
  // model has any, `mtp_scales` of the MTP losses, by depth. A microbatch of scale 0 is not trained on and may lack MTP
  // rows.
  void load(std::int64_t microbatch, const BatchSpans& host, float scale, float aux_scale = 0,
            std::span<const float> mtp_scales = {});
  // Gradient accumulation over all loaded microbatches, then reduction over the ranks; gradients of an earlier call are
  // overwritten. During batch size ramp-up and with dynamic context parallelism only the first `microbatches` run.
  void forward_backward();
  void forward_backward(std::int64_t microbatches);
  // Clips the gradients and updates the weights.
  void update(const LearningRates& rates);
  void update(double lr) { update({lr, lr}); }
  // forward_backward() and update() of so many microbatches. Where the device can, the second full step is captured as
  // one CUDA graph of all calls, and later ones replay it; it computes the same bits.
  void run(std::int64_t microbatches, const LearningRates& rates);
  void run(double lr) { run(setup_.batch.num_microbatches, {lr, lr}); }
  // Whether run() replays a CUDA graph, returned once when it is known; otherwise empty.
  std::string take_remark() { return std::exchange(remark_, {}); }
  // The all-gather of weights may, with overlap_param_gather, still be in flight after update(); blocks wait for it,
  // other readers of the weights call this.
  void wait_for_weights() { replicas_->wait_for_weights(); }
  // Forward only: the sum of the token losses of all loaded microbatches and ranks, and how many ranks want to stop.
  struct Evaluated {
    double loss_sum = 0, stop = 0;
  };
  Evaluated evaluate(bool stop = false);

  // This rank's shards of the model and the optimizer state. Valid while bound.
  ModelState state() const { return {list_tensors(setup_.model), params_, &optimizer_}; }
  // Resumes from a checkpoint of any layout; a collective call. UserError where its tensors do not match the model.
  void load_checkpoint(const Checkpoint& checkpoint, Checkpoint::Take take,
                       const std::optional<VerifyShard>& verified = {});

  // For the log: sum of token losses over all microbatches and ranks, and the norm of the gradient. read_back() only
  // starts the asynchronous copy to the host, so that the next step can be enqueued before result() waits for it; at
  // most two are in flight. Every rank gives its votes, and all ranks see the totals at the same step.
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
    ScaleReading scaling;  // after the step, with a loss scale
    // MoE models: MicroBatch::aux_losses and expert_counts of all microbatches and ranks. The counts belong to this
    // reading and are valid until the next but one.
    std::array<double, static_cast<std::size_t>(AuxLoss::count)> aux_losses{};
    std::span<const std::int32_t> expert_counts{};
    std::array<double, max_mtp_layers> mtp_loss_sums{};  // as loss_sum, by depth
    bool skipped() const { return scaling.skipped != 0; }
  };
  Reading read_back(const Votes& votes);
  Reading read_back() { return read_back(Votes{}); }
  Result result(const Reading& reading);

  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  std::int64_t count_parameters() const { return global_model_.parameters; }  // size of the full model
  const RankLayout& layout() const { return layout_; }
  // Bytes this rank sends in a step, group by group in the order of Groups::all(), as rehearsed.
  const std::vector<Traffic>& planned_traffic() const { return planned_traffic_; }
  const MemoryPlan& memory() const { return memory_.plan(); }
  const StageMemory& stage_memory() const { return stage_memory_; }  // has the measured peaks of real steps
  Ops& ops() { return *ops_; }
  // Optimizer updates, and the dynamic loss scale after them, of the steps whose result() was read.
  std::int64_t updates() const { return updates_; }
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }
  const LossScaler* scaler() const { return scaler_ ? &*scaler_ : nullptr; }  // none: losses are not scaled

 private:
  struct Inputs {  // inputs of one microbatch
    Tensor tokens, targets, positions, rows, token_loss;
    Tensor offsets;  // i32 [T+1]: capacity for the offsets of packed documents, over the rows of all ranks
    GlobalRows all;  // context parallelism only
    Tensor mtp_tokens, mtp_targets, mtp_loss;  // [depths,T], with multi-token prediction (MTP)
    std::vector<MtpRows> mtp_rows;             // views of the MTP tensors, by depth
  };
  void make_context_splits();
  void bind_inputs(Arena& arena);
  GlobalRows take_global_rows(Arena& arena) const;
  void load_global_rows(std::size_t index, const BatchSpans& host, const ContextParallelSplit& split);
  void set_documents(std::size_t index, std::size_t degree, std::int64_t documents);
  void rehearse_degrees(Ops& ops, Pipeline& pipeline, DataParallel& replicas);
  void bind_mtp_rows(Arena& arena, std::int64_t index);
  Tensor aux_row(const Tensor& weights, std::int64_t index) const;
  Tensor mtp_row(const Tensor& weights, std::int64_t depth, std::int64_t index) const;
  void load_mtp_rows(std::int64_t index, const BatchSpans& local, std::span<const float> scales);
  Tensor mtp_sum(std::int64_t depth) const;
  MicroBatch microbatch(std::int64_t index, bool training) const;
  DataParallel make_data_parallel(Ops& ops);
  void run_forward_backward(Ops& ops, Pipeline& pipeline, DataParallel& replicas, std::int64_t microbatches);
  void run_update(Ops& ops, DataParallel& replicas);
  void prepare_update(const LearningRates& rates);
  void allocate_expert_counts(Device& device);
  std::span<std::int32_t> overflow_slot(std::size_t slot) const;
  void check_expert_rows(std::size_t slot) const;
  void sum_losses(Ops& ops, std::size_t microbatches);
  void sum_mtp_losses(Ops& ops, std::size_t microbatches);
  void sum_expert_load(Ops& ops);
  void run_evaluation(Ops& ops, Pipeline& pipeline, DataParallel& replicas);
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
  RankLayout::GlobalModel global_model_;
  ParamStore params_;
  std::vector<Blocks> chunks_;
  std::optional<LossScaler> scaler_;
  Optimizer optimizer_;
  std::optional<ExpertLoad> expert_load_;
  Stage stage_;

  std::vector<Inputs> inputs_;
  std::vector<ContextParallelSplit> context_;  // splits a microbatch on the host, one for each of layout_.degrees
  std::vector<MicroBatch> batch_, evaluation_batch_;
  // f32 [kinds * microbatches]: weight of a token's loss; then of auxiliary losses (MoE) and of MTP losses by depth
  Tensor loss_weights_;
  Tensor loss_scales_;  // loss_weights_ times the loss scale; without one, the same tensor
  Tensor loss_sum_;     // f64 [3 + ..]: loss, then the votes as in Result; then auxiliary losses (MoE), MTP losses
  Tensor expert_overflow_, all_overflows_;  // i32 [1], [ranks], where expert capacity may overflow
  std::span<std::int32_t> read_overflows_;  // all_overflows_ in slots of host memory that the device writes
  std::span<std::int32_t> expert_offsets_;  // host memory that the device writes, with the all-to-all dispatcher
  Tensor agreement_;                        // i64 [ranks]
  std::span<Result> read_back_;             // host memory that the device writes
  std::span<std::int32_t> read_counts_;     // host memory that the device writes: expert_counts of each reading
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
  bool ran_full_step_ = false;            // call by call, with all microbatches
  std::unique_ptr<Recording> recording_;  // CUDA graph of a full step
  std::string remark_;
  double planned_flops_ = 0;
};

}  // namespace tera
