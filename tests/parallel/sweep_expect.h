#pragma once
// The tolerances of a layout's results against one rank's, and the layouts that are compared.

#include "tests/parallel/sweep_body.h"
#include "tests/support/close.h"

namespace tera::test {

inline constexpr int sweep_steps = 10;

// How far a layout may be from one rank.
struct SweepLimits {
  double loss = 1e-6, norm = 1e-5;  // relative
  DType gradients = DType::f32;     // rounded to this on the way
  double slack = 1;                 // factor on the rule's limit for gradients
  bool same_rows = true;            // false: some rows without a target are added or missing, which choose experts, too
  std::uint64_t degrees = 0;        // bits of degrees; microbatches of dynamic CP must have had each
  int steps = sweep_steps;          // to be run
  std::int64_t terms = 0;           // tokens that a gradient is a sum over; 0: those of the config's own batch
  void (*start_counting)() = nullptr;  // starts counting allocations, of which none is allowed after binding
  std::int64_t (*stop_counting)() = nullptr;
};

void expect_like_one_rank(const SweepCase& one, const SweepResult& want, const SweepLimits& limits = {});
// Compares the results of one of several processes: its own shards of gradients, and losses and norms if it is the
// first.
void expect_part_like_one_rank(const SweepCase& one, const SweepResult& got, const SweepResult& want,
                               const SweepLimits& limits);

inline const Overrides tp2{"dist.tensor_model_parallel_size=2"}, tp4{"dist.tensor_model_parallel_size=4"};
inline const Overrides sp{"dist.sequence_parallel=true"};
inline const Overrides pp2{"dist.pipeline_model_parallel_size=2"}, pp4{"dist.pipeline_model_parallel_size=4"};
inline const Overrides zero1{"ddp.data_parallel_sharding_strategy=optim"};
inline const Overrides zero2{"ddp.data_parallel_sharding_strategy=optim_grads"};
inline const Overrides zero3{"ddp.data_parallel_sharding_strategy=optim_grads_params"};
inline const Overrides buckets{"ddp.bucket_size=3000"};
inline const Overrides overlap{"comm_overlap.overlap_grad_reduce=true"};
inline const Overrides zero_bubble{"dist.pipeline_schedule=zero_bubble"};
inline const Overrides zbv{"dist.pipeline_schedule=zero_bubble_v"};
inline const Overrides vp2{"dist.virtual_pipeline_model_parallel_size=2"};
inline const Overrides full{"model.recompute_granularity=full"};
inline const Overrides selective{"model.recompute_granularity=selective",
                                 "model.recompute_modules=[layernorm,activation]"};
inline const Overrides offload{
    "model.offload_modules=[attn_norm,qkv_linear,core_attn,attn_proj,mlp_norm,mlp_fc1,mlp_act,mlp_fc2]"};
inline const Overrides offload_blocks{"model.offload_modules=[attention,mlp]"};
inline const Overrides offload_x{"model.offload_modules=[attn_norm]"};

inline const Overrides ep2{"dist.expert_model_parallel_size=2"}, ep4{"dist.expert_model_parallel_size=4"};
inline const Overrides ep8{"dist.expert_model_parallel_size=8"};
inline const Overrides etp1{"dist.expert_tensor_parallel_size=1"}, etp2{"dist.expert_tensor_parallel_size=2"};
inline const Overrides etp4{"dist.expert_tensor_parallel_size=4"};
inline const Overrides all_to_all{"model.moe.token_dispatcher_type=alltoall"};
inline const Overrides shared_overlap{"model.moe.shared_expert_overlap=true"};
inline const Overrides together{"comm_overlap.overlap_moe_expert_parallel_comm=true"};

inline const Overrides cp2{"dist.context_parallel_size=2"}, cp4{"dist.context_parallel_size=4"};
inline const Overrides ulysses{"dist.cp_comm_type=a2a"}, cp_all_gather{"dist.cp_comm_type=all_gather"};
inline const Overrides cp_ring{"dist.cp_comm_type=p2p"};
inline const Overrides dynamic{"dist.dynamic_context_parallel=true"};
inline const Overrides packed_documents{"dataset.reset_attention_mask=true", "dataset.reset_position_ids=true",
                                        "dataset.eod_mask_loss=true"};

// Every combination of tensor, pipeline and data parallelism that fits on 8 ranks; recompute and overlap alternate.
std::vector<SweepCase> sweep_layouts();

// Layouts of a model with 8 experts, whose mesh differs from that of the other weights, with either dispatcher.
std::vector<SweepCase> expert_layouts();

// Models with layouts of context parallelism, each of which trains as one rank does.
struct ContextSweep {
  SweepCase alone;
  std::vector<std::pair<int, Overrides>> layouts;
};
std::vector<ContextSweep> context_sweeps();

// Models with layouts of dynamic context parallelism, which assigns documents anew in every step; `degrees` are bits of
// the degrees that microbatches then have.
struct DynamicSweep {
  SweepCase alone;
  std::vector<std::pair<int, Overrides>> layouts;
  std::uint64_t degrees = 0;
};
std::vector<DynamicSweep> dynamic_sweeps();

}  // namespace tera::test
