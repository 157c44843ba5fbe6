// Training steps of ranks that are processes: the same bits as of ranks that are threads, in the same layout.

#include <gtest/gtest.h>

#include "tests/parallel/mpi_main.h"
#include "tests/parallel/sweep_axes.h"

namespace tera::test {
namespace {

constexpr int steps = 3;

void expect_same_as_threads(const SweepCase& one) {
  SCOPED_TRACE(one.describe());
  SweepResult threads, processes;
  run_on_threads(one, steps, threads);
  processes.loss.reserve(steps);
  processes.norm.reserve(steps);
  processes.scale.reserve(steps);
  processes.aux_losses.reserve(steps * static_cast<std::size_t>(AuxLoss::count));
  run_rank(one, mpi_rank_handle(), steps, processes);
  EXPECT_TRUE(processes.gradients.is_part_of(threads.gradients));
  EXPECT_TRUE(processes.weights.is_part_of(threads.weights));
  EXPECT_TRUE(processes.peaks_as_planned);
  EXPECT_EQ(processes.router_state.is_part_of(threads.router_state), !threads.router_state.tensors().empty());
  if (mpi_rank_handle().rank() != 0) return;  // only the first writes down the rest
  EXPECT_EQ(processes.initial_loss, threads.initial_loss);
  EXPECT_EQ(processes.loss, threads.loss);
  EXPECT_EQ(processes.norm, threads.norm);
  EXPECT_EQ(processes.scale, threads.scale);
  EXPECT_EQ(processes.aux_losses, threads.aux_losses);
  EXPECT_EQ(processes.choices, threads.choices);
  // MPI allocates memory of its own for bytes that come before their receive is posted, until it has enough; an
  // allocation of ours would come with every one of some hundred calls. Nothing is counted under a sanitizer.
  EXPECT_LE(processes.allocations, 8);
}

TEST(MpiSweep, EveryValueOfEveryAxis) {
  const std::vector<Choice> layouts = every_value(mpi_rank_handle().size());
  EXPECT_GE(layouts.size(), 6u);
  for (const Choice& layout : layouts) expect_same_as_threads(drawn_layout(layout).shared);
}

// The longer lists are for make slow.
void expect_same_as_threads(const std::string& config, const Overrides& overrides) {
  expect_same_as_threads({.config = config, .ranks = mpi_rank_handle().size(), .overrides = overrides});
}

Overrides with(std::initializer_list<const char*> short_names) {
  const std::map<std::string, Overrides> known{
      {"tp2", {"dist.tensor_model_parallel_size=2"}},
      {"tp2sp", {"dist.tensor_model_parallel_size=2", "dist.sequence_parallel=true"}},
      {"tp_overlap", {"comm_overlap.tp_comm_overlap=true"}},
      {"pp2", {"dist.pipeline_model_parallel_size=2"}},
      {"pp4", {"dist.pipeline_model_parallel_size=4"}},
      {"zb", {"dist.pipeline_schedule=zero_bubble"}},
      {"zbv", {"dist.pipeline_schedule=zero_bubble_v"}},
      {"vp2", {"dist.virtual_pipeline_model_parallel_size=2"}},
      {"z1", {"ddp.data_parallel_sharding_strategy=optim", "ddp.bucket_size=3000"}},
      {"z2", {"ddp.data_parallel_sharding_strategy=optim_grads"}},
      {"z3", {"ddp.data_parallel_sharding_strategy=optim_grads_params"}},
      {"overlap", {"comm_overlap.overlap_grad_reduce=true"}},
      {"gather", {"comm_overlap.overlap_grad_reduce=true", "comm_overlap.overlap_param_gather=true"}},
      {"full", {"model.recompute_granularity=full"}},
      {"ep2", {"dist.expert_model_parallel_size=2"}},
      {"ep4", {"dist.expert_model_parallel_size=4"}},
      {"etp1", {"dist.expert_tensor_parallel_size=1"}},
      {"cp2", {"dist.context_parallel_size=2"}},
      {"cp4", {"dist.context_parallel_size=4"}},
      {"dealt",
       {"dist.dynamic_context_parallel=true", "train.micro_batch_size=1", "train.seq_length=16",
        "dataset.reset_attention_mask=true", "dataset.eod_mask_loss=true"}},
      {"heads", {"dist.cp_comm_type=a2a"}},
      {"gathered", {"dist.cp_comm_type=all_gather"}},
      {"ring", {"dist.cp_comm_type=p2p"}},
      {"packed",
       {"dataset.reset_attention_mask=true", "dataset.reset_position_ids=true", "dataset.eod_mask_loss=true"}},
      {"a2a", {"model.moe.token_dispatcher_type=alltoall"}},
      {"shared", {"model.moe.shared_expert_overlap=true"}},
      {"together", {"comm_overlap.overlap_moe_expert_parallel_comm=true"}},
      {"fp16", {"mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=1048576"}}};
  Overrides all;
  for (const char* name : short_names) all.insert(all.end(), known.at(name).begin(), known.at(name).end());
  return all;
}

TEST(MpiSweepSlow, TheSameBitsAsThreads) {
  const std::map<int, std::vector<Overrides>> layouts{
      {2,
       {with({}), with({"z1", "gather"}), with({"z2", "overlap"}), with({"z3", "gather"}), with({"tp2"}),
        with({"tp2sp", "tp_overlap"}), with({"pp2"}), with({"pp2", "vp2", "full"}), with({"pp2", "zbv"}),
        with({"fp16", "z1"})}},
      {4,
       {with({"z3", "overlap"}), with({"tp2sp", "z1", "gather"}), with({"pp4", "zb"}), with({"tp2", "pp2", "full"})}},
      {8, {with({"tp2sp", "pp2", "z1", "gather", "tp_overlap"}), with({"tp2", "pp2", "zb", "z3", "overlap"})}}};
  const auto found = layouts.find(mpi_rank_handle().size());
  ASSERT_NE(found, layouts.end()) << "no layouts for " << mpi_rank_handle().size() << " ranks";
  for (const Overrides& overrides : found->second)
    for (const char* config : {"sweep_llama", "sweep_gpt"}) expect_same_as_threads(config, overrides);
}

TEST(MpiSweepSlow, ExpertsOnOtherRanks) {
  const std::map<int, std::vector<Overrides>> layouts{
      {2, {with({"ep2"}), with({"ep2", "a2a", "z1", "overlap"}), with({"tp2sp", "ep2", "etp1", "a2a"})}},
      {4,
       {with({"tp2", "ep2", "a2a"}), with({"tp2sp", "ep4", "etp1", "z3"}), with({"pp2", "ep2", "a2a", "zb"}),
        with({"ep4", "a2a", "full"})}},
      {8, {with({"tp2sp", "pp2", "ep4", "etp1", "a2a", "z1"}), with({"tp2", "ep4", "etp1", "z2", "overlap"})}}};
  for (const Overrides& overrides : layouts.at(mpi_rank_handle().size()))
    expect_same_as_threads("sweep_experts", overrides);
}

// Between processes, rows really are in flight while something else is computed.
TEST(MpiSweepSlow, OverlapOfExperts) {
  const std::map<int, std::vector<Overrides>> layouts{
      {2,
       {with({"ep2", "shared"}), with({"ep2", "a2a", "together"}), with({"ep2", "a2a", "shared", "together", "z1"}),
        with({"tp2sp", "ep2", "etp1", "together"})}},
      {4,
       {with({"pp2", "ep2", "a2a", "together"}), with({"pp2", "vp2", "ep2", "a2a", "shared", "together"}),
        with({"pp2", "ep2", "zb", "together"}), with({"tp2", "ep2", "a2a", "shared", "together"})}},
      {8, {with({"tp2sp", "pp2", "ep4", "etp1", "a2a", "z1", "shared", "together"})}}};
  for (const Overrides& overrides : layouts.at(mpi_rank_handle().size()))
    expect_same_as_threads("sweep_experts", overrides);
}

TEST(MpiSweepSlow, SequencesOverRanks) {
  const std::map<int, std::vector<Overrides>> layouts{
      {2, {with({"cp2", "heads"}), with({"cp2", "gathered", "packed", "z3", "gather"}), with({"cp2", "ring"})}},
      {4, {with({"cp2", "heads", "tp2sp", "full"}), with({"cp2", "ring", "pp2", "zb", "packed"})}},
      {8, {with({"cp2", "ring", "tp2", "pp2", "packed"})}}};
  for (const Overrides& overrides : layouts.at(mpi_rank_handle().size()))
    for (const char* config : {"sweep_gpt", "sweep_mla"}) expect_same_as_threads(config, overrides);
}

// Groups of every degree are split from the group of all ranks.
TEST(MpiSweepSlow, DynamicContextParallel) {
  const std::map<int, std::vector<Overrides>> layouts{
      {2, {with({"dealt", "cp2", "heads"}), with({"dealt", "cp2", "ring", "z3", "gather"})}},
      {4,
       {with({"dealt", "cp4", "ring"}), with({"dealt", "cp4", "gathered", "full"}), with({"dealt", "cp2", "heads"})}},
      {8, {with({"dealt", "cp4", "ring", "pp2", "zb"}), with({"dealt", "cp2", "gathered", "tp2sp", "z1"})}}};
  for (const Overrides& overrides : layouts.at(mpi_rank_handle().size()))
    expect_same_as_threads("sweep_gpt", overrides);
}

// The comparison includes the router state.
TEST(MpiSweepSlow, MoeBias) {
  const std::map<int, std::vector<Overrides>> layouts{
      {2, {with({"tp2sp"}), with({"z3", "gather"}), with({"pp2", "zb"})}},
      {4, {with({"tp2", "pp2", "full"})}},
      {8, {with({"tp2sp", "pp2", "z1", "gather", "tp_overlap"})}}};
  for (const Overrides& overrides : layouts.at(mpi_rank_handle().size()))
    expect_same_as_threads("sweep_moe_bias", overrides);
}

TEST(MpiSweepSlow, BiasOfExpertsOnOtherRanks) {
  const std::map<int, std::vector<Overrides>> layouts{{2, {with({"ep2", "a2a"}), with({"tp2sp", "ep2", "etp1"})}},
                                                      {4, {with({"pp2", "ep2", "a2a", "zb"})}},
                                                      {8, {with({"tp2sp", "ep4", "etp1", "a2a", "z1"})}}};
  for (const Overrides& overrides : layouts.at(mpi_rank_handle().size()))
    expect_same_as_threads("sweep_expert_bias", overrides);
}

TEST(MpiSweepSlow, LatentAttention) {
  const std::map<int, std::vector<Overrides>> layouts{
      {2, {with({"tp2sp", "tp_overlap"}), with({"pp2", "zbv"}), with({"ep2", "a2a", "z1"})}},
      {4, {with({"tp2", "pp2", "full"}), with({"tp2sp", "ep4", "etp1", "z3"})}},
      {8, {with({"tp2sp", "pp2", "ep2", "a2a", "z1", "gather"})}}};
  for (const Overrides& overrides : layouts.at(mpi_rank_handle().size()))
    expect_same_as_threads("sweep_mla", overrides);
}

}  // namespace
}  // namespace tera::test
