// A world planned on one machine against the same world by threads: every rank allocates the planned bytes and makes
// the planned calls. Volumes of communication are compared with formulas.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tera/comm/world.h"
#include "tera/plan/memory_advisor.h"
#include "tera/plan/memory_knobs.h"
#include "tera/plan/world_plan.h"
#include "tera/setup/load.h"
#include "tera/setup/resolve.h"
#include "tera/train/shared_memory.h"
#include "tera/train/training_step.h"
#include "tests/support/counting_comm.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/watched_device.h"

namespace tera::test {
namespace {

struct Layout {
  std::string name, config;
  int ranks;
  std::vector<std::string> overrides;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

tera::Setup load(const Layout& layout) {
  const LoadedConfig loaded = load_config(source_path("configs/tests/") + layout.config + ".yaml", layout.overrides);
  return resolve(loaded.config, Purpose::inspect, &loaded.origins, layout.ranks);
}

WorldPlan plan(const tera::Setup& setup) { return plan_world(setup, *make_workspace_rules(setup)); }

const GroupTraffic& group(const StageRehearsal& stage, std::string_view name) {
  for (const auto& group : stage.groups)
    if (group.name == name) return group;
  fail("no group {}", name);
}

const std::string tp2 = "dist.tensor_model_parallel_size=2", tp4 = "dist.tensor_model_parallel_size=4";
const std::string cp2 = "dist.context_parallel_size=2";
const std::string pp2 = "dist.pipeline_model_parallel_size=2", pp4 = "dist.pipeline_model_parallel_size=4";
const std::string sp = "dist.sequence_parallel=true", vp2 = "dist.virtual_pipeline_model_parallel_size=2";
const std::string zero1 = "ddp.data_parallel_sharding_strategy=optim";
const std::string zero2 = "ddp.data_parallel_sharding_strategy=optim_grads";
const std::string zero3 = "ddp.data_parallel_sharding_strategy=optim_grads_params";

const std::string all_to_all = "model.moe.token_dispatcher_type=alltoall";
const std::string together = "comm_overlap.overlap_moe_expert_parallel_comm=true";

std::vector<Layout> layouts() {
  return {{"one", "sweep_llama", 1, {}},
          {"dp2", "sweep_gpt", 2, {"ddp.bucket_size=3000", "comm_overlap.overlap_grad_reduce=true"}},
          {"zero1", "sweep_llama", 4, {zero1}},
          {"zero2", "sweep_gpt", 2, {zero2}},
          {"zero3", "sweep_llama", 4, {zero3}},
          {"tp2", "sweep_gpt", 2, {tp2}},
          {"repeated_heads_sp", "sweep_llama", 4, {tp4, sp}},
          {"pp4", "sweep_gpt", 4, {pp4}},
          {"interleaved", "sweep_llama", 4, {pp2, vp2, zero1}},
          {"zero_bubble", "sweep_llama", 4, {pp4, "dist.pipeline_schedule=zero_bubble"}},
          {"v", "sweep_gpt", 4, {pp2, tp2, sp, "dist.pipeline_schedule=zero_bubble_v"}},
          {"uneven", "sweep_llama", 2, {pp2, "dist.pipeline_model_parallel_layout=Et|tttL"}},
          {"bf16", "sweep_llama", 8, {tp2, sp, pp2, zero1, "mixed_precision.precision=bf16"}},
          {"fp16", "sweep_gpt", 4, {pp2, zero2, "mixed_precision.precision=fp16"}},
          {"all_with_zero3", "sweep_gpt", 8, {tp2, sp, pp2, zero3, "model.recompute_granularity=full"}},
          {"experts", "sweep_experts", 4, {tp2, "dist.expert_model_parallel_size=2", zero1}},
          {"experts_exchanged", "sweep_experts", 4, {"dist.expert_model_parallel_size=4", all_to_all, zero1}},
          {"experts_gathered",
           "sweep_experts",
           4,
           {tp2, sp, pp2, "dist.expert_model_parallel_size=2", "dist.expert_tensor_parallel_size=1"}},
          {"experts_together",
           "sweep_experts",
           4,
           {pp2, "dist.expert_model_parallel_size=2", all_to_all, together, "train.micro_batch_size=1",
            "model.moe.shared_expert_overlap=true"}},
          {"context_heads", "sweep_gpt", 4, {tp2, sp, cp2, zero1, "dist.cp_comm_type=a2a"}},
          {"context_gathered", "sweep_llama", 4, {cp2, pp2, "dist.cp_comm_type=all_gather"}},
          {"context_ring", "sweep_llama", 4, {tp2, cp2, "mixed_precision.precision=bf16"}},
          {"context_latent", "sweep_mla", 4, {cp2, pp2, "model.recompute_granularity=full"}},
          {"context_experts", "sweep_moe_bias", 2, {cp2, "dist.expert_model_parallel_size=2"}},
          {"other_order", "sweep_llama", 8, {tp2, pp2, zero2, "dist.order=tp-cp-ep-pp-dp"}}};
}

void load_nothing(TrainingStep& step, const tera::Setup& setup) {
  const auto rows = static_cast<std::size_t>(setup.batch.micro_batch * setup.batch.seq_length);
  std::vector<std::int32_t> tokens(rows), targets(rows), positions(rows);
  std::vector<std::int64_t> row_ids(rows);
  for (std::int64_t i = 0; i < setup.batch.num_microbatches; ++i)
    step.load(i, {tokens, targets, positions, row_ids}, 1);
}

// Compares what a rank has really allocated with the plan of its stage.
void expect_memory(const TrainingStep& step, const MemoryPlan& plan, const std::vector<std::size_t>& requested) {
  EXPECT_EQ(requested, std::vector{plan.total()});
  ASSERT_EQ(step.memory().items().size(), plan.items().size());
  for (const auto& item : step.memory().items()) {
    EXPECT_EQ(item.bytes, plan.item(item.name).bytes) << item.name;
    EXPECT_EQ(item.copies, plan.item(item.name).copies) << item.name;
    EXPECT_EQ(item.tags, plan.item(item.name).tags) << item.name;
  }
  step.stage_memory().visit([&](std::string_view name, std::span<const Arena> arenas) {
    std::size_t peak = 0;
    for (const Arena& arena : arenas) peak = std::max(peak, arena.peak());
    EXPECT_EQ(peak, plan.item(name).bytes) << name;
  });
}

class PlannedWorld : public testing::TestWithParam<Layout> {};

TEST_P(PlannedWorld, EveryRankTakesTheBytesAndMakesTheCalls) {
  const tera::Setup setup = load(GetParam());
  const WorldPlan planned = plan(setup);
  ASSERT_EQ(planned.stages.size(), static_cast<std::size_t>(setup.parallel.mesh.pp));
  run_threads(GetParam().ranks, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& rank_handle) {
    SCOPED_TRACE("rank " + std::to_string(rank_handle.rank()));
    Backend backend = make_backend(setup.config.dist);
    auto watched = std::make_unique<WatchedDevice>();
    const WatchedDevice& device = *watched;
    backend.device = std::move(watched);
    CallsByGroup calls;
    CountingComm world(rank_handle.join(*backend.ops), calls);
    TrainingStep step(setup, rank_handle.rank());
    step.bind(backend, world);
    load_nothing(step, setup);
    calls.clear();
    step.forward_backward();
    step.update(1e-3);
    const CallsByGroup in_a_step = calls;
    step.evaluate();

    const StageRehearsal& stage = planned.stages.at(static_cast<std::size_t>(step.layout().groups.coord.pp));
    expect_memory(step, stage.memory, device.requested);
    EXPECT_EQ(step.params().count_elements(), stage.parameters);
    for (const auto& [name, ranks, traffic] : stage.groups) {
      const auto found = in_a_step.find(name);
      EXPECT_EQ(found == in_a_step.end() ? 0 : found->second, traffic.calls) << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, PlannedWorld, testing::ValuesIn(layouts()),
                         [](const auto& test) { return test.param.name; });

constexpr double rows = 24, hidden = 32, f32 = 4;  // one microbatch of the sweep's configs

TEST(WorldPlan, OneRankIsItsStep) {
  const tera::Setup setup = load({"", "sweep_llama", 1, {}});
  const WorldPlan planned = plan(setup);
  TrainingStep step(setup);
  const MemoryPlan memory = step.plan(*make_workspace_rules(setup));
  EXPECT_EQ(planned.stages.at(0).memory.total(), memory.total());
  EXPECT_EQ(planned.parameters, planned.stages[0].parameters);
  EXPECT_EQ(planned.total_flops(setup.parallel), step.planned().flops);
  EXPECT_EQ(planned.bubble, 0);
  for (const auto& one : planned.stages[0].groups) EXPECT_EQ(one.traffic.bytes, 0) << one.name;
}

TEST(WorldPlan, PipelineSendsStageBoundaries) {
  const tera::Setup setup = load({"", "sweep_llama", 8, {pp4, tp2, sp}});
  const WorldPlan planned = plan(setup);
  const auto batches = static_cast<double>(setup.batch.num_microbatches);
  const double boundary_bytes = rows / 2 * hidden * f32;
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const double neighbours = stage == 0 || stage == 3 ? 1 : 2;
    EXPECT_EQ(group(planned.stages[stage], "pp").traffic.bytes, neighbours * batches * boundary_bytes) << stage;
  }
  EXPECT_DOUBLE_EQ(planned.bubble, 3 / (batches + 3));
}

// Two sums forward and two backward in a layer, each of which a ring sends twice.
TEST(WorldPlan, TensorParallelLayersSumTheirOutputs) {
  const tera::Setup setup = load({"", "sweep_llama", 8, {pp4, tp2}});
  const StageRehearsal middle = plan(setup).stages.at(1);
  const auto batches = static_cast<double>(setup.batch.num_microbatches);
  EXPECT_EQ(group(middle, "tp").traffic.bytes, 4 * batches * rows * hidden * f32);
}

// Three layers have experts, of which a token chooses two. F and B send rows out and sums back, W sends rows of both
// again; with the rows of F go expert and weight, and the gradient of the weight comes back in B.
TEST(WorldPlan, RowsAreSentToExpertsAndBack) {
  constexpr double choices = 2 * rows, small = 4;
  const tera::Setup exchanged = load(
      {"", "sweep_experts", 4, {"dist.expert_model_parallel_size=4", all_to_all, "model.moe.aux_loss_coeff=[0,0]"}});
  const auto batches = static_cast<double>(exchanged.batch.num_microbatches);
  const WorldPlan planned = plan(exchanged);
  EXPECT_EQ(group(planned.stages.at(0), "ep").traffic.bytes,
            batches * 3 * 0.75 * choices * (6 * hidden * f32 + 3 * small));
  ASSERT_TRUE(planned.experts.has_value());
  EXPECT_EQ(planned.experts->experts, 2);
  EXPECT_EQ(planned.experts->balanced, 2 * rows);
  EXPECT_EQ(planned.experts->worst_case, 4 * 2 * rows);
  EXPECT_EQ(planned.experts->rows, planned.experts->worst_case);

  const tera::Setup gathered = load({"", "sweep_experts", 4, {"dist.expert_model_parallel_size=4"}});
  const WorldPlan all = plan(gathered);
  EXPECT_EQ(group(all.stages.at(0), "etp_ep").traffic.bytes,
            batches * 3 * 3 * rows * (6 * hidden * f32 + 2 * 3 * small));
  EXPECT_EQ(all.total_flops(gathered.parallel), planned.total_flops(exchanged.parallel));
  EXPECT_EQ(all.total_flops(gathered.parallel), plan(load({"", "sweep_experts", 1, {}})).stages[0].flops);

  const tera::Setup tight = load(
      {"", "sweep_experts", 4, {"dist.expert_model_parallel_size=4", "model.moe.expert_rank_capacity_factor=1.25"}});
  EXPECT_EQ(plan(tight).experts->rows, 64) << "60, in sixteens";
  EXPECT_LT(plan(tight).stages[0].memory.total(), all.stages[0].memory.total());
}

// Two microbatches are in flight instead of one, F has scratch of its own, and W reads the gradient rows that B
// received.
TEST(WorldPlan, MicrobatchesThatRunTogether) {
  const std::vector<std::string> layout{"dist.expert_model_parallel_size=4", all_to_all};
  std::vector<std::string> overlapped = layout;
  overlapped.push_back(together);
  const WorldPlan apart = plan(load({"", "sweep_experts", 4, layout})),
                  both = plan(load({"", "sweep_experts", 4, overlapped}));
  const MemoryPlan &one = apart.stages.at(0).memory, &two = both.stages.at(0).memory;
  EXPECT_EQ(one.item("activations, F to B").copies, 1u);
  EXPECT_EQ(two.item("activations, F to B").copies, 2u);
  EXPECT_EQ(two.item("activations, F to B").bytes, one.item("activations, F to B").bytes);
  EXPECT_GT(two.item("scratch beside").bytes, 0u);
  EXPECT_LE(two.item("scratch beside").bytes, two.item("scratch").bytes);
  const double rows_of_a_rank = 4 * 2 * rows;
  EXPECT_EQ(static_cast<double>(two.item("activations, B to W").bytes - one.item("activations, B to W").bytes),
            rows_of_a_rank * hidden * f32);
  const auto batches = static_cast<double>(load({"", "sweep_experts", 4, layout}).batch.num_microbatches);
  EXPECT_EQ(group(apart.stages[0], "ep").traffic.bytes - group(both.stages[0], "ep").traffic.bytes,
            batches * 3 * 0.75 * 2 * rows * hidden * f32);
}

// Gradients are f32 here; a ring all-reduce sends them once to sum them and once to gather the sums.
TEST(WorldPlan, ReplicasSumGradientsAndGatherWeights) {
  const auto sent = [](const std::string& sharding, const char* precision) {
    const tera::Setup setup =
        load({"", "sweep_llama", 4, {sharding, std::string("mixed_precision.precision=") + precision}});
    return group(plan(setup).stages.at(0), "dp_cp").traffic.bytes;
  };
  const tera::Setup alone = load({"", "sweep_llama", 1, {}});
  const auto gradients = static_cast<double>(plan(alone).stages.at(0).memory.item("gradients").bytes);
  const double part = 0.75;  // what a rank sends of a tensor of 4 ranks, in each half of a sum
  const double all = sent("ddp.data_parallel_sharding_strategy=no_shard", "fp32");
  EXPECT_EQ(all, 2 * part * gradients);
  EXPECT_NEAR(sent(zero1, "fp32"), all, 0.05 * all);  // shards are rounded up
  EXPECT_NEAR(sent(zero1, "bf16"), 0.75 * all, 0.05 * all);
}

TEST(WorldPlan, ShardingDividesWhatIsKept) {
  const auto kept = [](const std::string& sharding, const char* item) {
    const tera::Setup setup = load({"", "sweep_llama", 4, {sharding, "mixed_precision.precision=bf16"}});
    return static_cast<double>(plan(setup).stages.at(0).memory.item(item).bytes);
  };
  const std::string none = "ddp.data_parallel_sharding_strategy=no_shard";
  EXPECT_NEAR(kept(zero1, "master weights"), kept(none, "master weights") / 4, 0.05 * kept(none, "master weights"));
  EXPECT_NEAR(kept(zero1, "optimizer"), kept(none, "optimizer") / 4, 0.05 * kept(none, "optimizer"));
  EXPECT_LT(kept(zero2, "gradients"), kept(zero1, "gradients"));
  EXPECT_LT(kept(zero3, "weights"), kept(zero2, "weights"));
}

// A device with a given number of free bytes on the host, and enough memory of its own where it is a GPU.
struct Host final : Device {
  Host(bool gpu, double bytes) : is_gpu(gpu), left(static_cast<std::size_t>(bytes)) {}
  std::span<std::byte> allocate(std::size_t) override { fail("nothing is allocated"); }
  std::span<std::byte> allocate_host(std::size_t) override { fail("nothing is allocated"); }
  bool is_host() const override { return !is_gpu; }
  std::size_t available() const override { return is_gpu ? std::size_t{1} << 40 : left; }
  std::size_t host_available() const override { return left; }
  bool is_gpu;
  std::size_t left;
};

// Each rank's part fits alone; those of one machine must together.
TEST(SharedMemory, PlansOfOneMachineAreAddedUp) {
  const tera::Setup setup =
      load({"shared",
            "tiny",
            4,
            {pp2, "model.offload_modules=[attention,mlp]", "checkpoint.save=kept", "checkpoint.async_save=true"}});
  const WorldPlan planned = plan(setup);
  const auto rules = make_workspace_rules(setup);
  const auto check = [&](const std::vector<int>& ranks, const Host& host) {
    check_shared_memory(setup, ranks, host, *rules);
  };
  const auto refusal = [&](const std::vector<int>& ranks, const Host& host) {
    return message_of<UserError>([&] { check(ranks, host); });
  };
  const MemoryPlan &first = planned.stages[0].memory, &last = planned.stages[1].memory;
  ASSERT_GT(first.host_bytes(), 0u);
  ASSERT_NE(first.host_bytes(), last.host_bytes());
  const auto on_host = [](const MemoryPlan& memory) { return static_cast<double>(memory.host_bytes()); };
  const auto all = [&](const MemoryPlan& memory) { return static_cast<double>(memory.total()) + on_host(memory); };

  // Ranks 0 and 1 are the first stage, 2 and 3 the last.
  const double pinned = on_host(first) + 2 * on_host(last);
  EXPECT_NO_THROW(check({1, 2, 3}, Host(true, pinned)));
  const std::string gpus = refusal({1, 2, 3}, Host(true, pinned - 1));
  EXPECT_TRUE(contains(gpus, "the plans of the 3 ranks of this machine need")) << gpus;
  EXPECT_TRUE(contains(gpus, "model.offload_modules")) << gpus;
  EXPECT_NO_THROW(check({2}, Host(true, on_host(last) - 1))) << "one rank looks after itself";
  const double bytes = 2 * all(first) + 2 * all(last);
  EXPECT_NO_THROW(check({0, 1, 2, 3}, Host(false, bytes)));
  EXPECT_TRUE(contains(refusal({0, 1, 2, 3}, Host(false, bytes - 1)), "the plans of the 4 ranks need"));

  const tera::Setup plain = load({"plain", "tiny", 4, {pp2}});
  EXPECT_NO_THROW(check_shared_memory(plain, std::vector{0, 1, 2, 3}, Host(true, 0), *rules));
}

std::size_t need_of(const tera::Setup& setup) {
  const WorldPlan world = plan(setup);
  return world.stages[world.largest_stage()].memory.total();
}

std::string advice_for(const tera::Setup& setup, std::size_t usable) {
  return advise_on_memory(setup, *make_workspace_rules(setup), static_cast<double>(need_of(setup)),
                          static_cast<double>(usable));
}

// On the CPU more ranks do not help, but sharding what they all hold does. What is named was rehearsed.
TEST(MemoryAdvisor, NamesWhatHelpsAndWithHowMuch) {
  const std::string full = "model.recompute_granularity=full", longer = "train.seq_length=256";
  const tera::Setup setup = load({"replicas", "sweep_llama", 2, {longer}});
  const std::size_t needed = need_of(setup);
  const std::size_t recomputed = need_of(load({"full", "sweep_llama", 2, {longer, full}}));
  ASSERT_LT(recomputed, needed * 9 / 10);
  const std::string way = fmt::format("{} ({} a rank)", full, format_bytes(recomputed));

  const std::string advice = advice_for(setup, recomputed);
  EXPECT_TRUE(advice.starts_with("it fits with a smaller train.micro_batch_size or train.seq_length, or ")) << advice;
  EXPECT_LT(advice.find(way), advice.find("needs less")) << advice;
  EXPECT_FALSE(contains(advice, "parallel_size")) << advice;
  const std::string short_of = advice_for(setup, recomputed - 1);
  EXPECT_TRUE(contains(short_of, way)) << short_of;
  EXPECT_LT(short_of.rfind("; ", short_of.find(way)), short_of.find(way)) << short_of;
  EXPECT_TRUE(short_of.ends_with(" needs less, but does not fit alone")) << short_of;

  // The message of a run.
  Host small(false, static_cast<double>(needed) - 1);
  const std::string message = message_of<UserError>([&] {
    PlannedMemory(small, plan(setup).stages[0].memory,
                  [&](double, double usable) { return advice_for(setup, static_cast<std::size_t>(usable)); });
  });
  EXPECT_TRUE(contains(message, "the plan needs " + format_bytes(needed) + ", 1 B more than the ")) << message;
  EXPECT_TRUE(contains(message, "that the machine has left; it fits with a smaller train.")) << message;
}

// Two changes that do not fit alone do together, to the byte.
TEST(MemoryAdvisor, TriesPairsWhereNoChangeFitsAlone) {
  const std::string full = "model.recompute_granularity=full", longer = "train.seq_length=64";
  const auto need = [&](const std::vector<std::string>& more) {
    std::vector<std::string> overrides{longer};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return need_of(load({"changed", "sweep_llama", 2, overrides}));
  };
  const tera::Setup setup = load({"replicas", "sweep_llama", 2, {longer}});
  std::size_t least = need_of(setup);
  std::string best;
  for (const std::string& sharding : {zero1, zero2, zero3})
    if (const std::size_t bytes = need({full, sharding}); bytes < least) {
      least = bytes;
      best = sharding;
    }
  ASSERT_LT(least, need({full}));
  const std::string pair = fmt::format("{} and {} ({} a rank)", full, best, format_bytes(least));
  const std::string advice = advice_for(setup, least), near = advice_for(setup, least - 1);
  EXPECT_TRUE(contains(advice, "fits with ")) << advice;
  EXPECT_TRUE(contains(advice, pair)) << advice;
  EXPECT_TRUE(!contains(near, pair) || contains(near, "nearest comes " + pair)) << near;
  const std::string far = advice_for(setup, least / 100);
  EXPECT_TRUE(far.starts_with("no one change would do, nor any two that were tried: ")) << far;
  EXPECT_TRUE(contains(far, "; nearest comes " + pair)) << far;
}

std::string changes_of(const tera::Setup& setup, KnobKind kind) {
  std::string text;
  for (const Knob& knob : knobs_of(setup))
    if (knob.kind == kind)
      for (const Change& change : knob.changes)
        text += fmt::format("{} on {}, ", change.words.substr(change.words.find('=') + 1), change.world);
  return text;
}

TEST(Knobs, SizesGrowByReplicasOrOnMoreRanks) {
  const std::string cuda = "dist.device=cuda", cp8 = "dist.context_parallel_size=8", longer = "train.seq_length=64";
  EXPECT_EQ(changes_of(load({"one", "sweep_llama", 1, {cuda}}), KnobKind::tensor), "2 on 2, 4 on 4, 8 on 8, ");
  EXPECT_EQ(changes_of(load({"dp4", "sweep_llama", 4, {cuda}}), KnobKind::pipeline), "2 on 4, 4 on 4, ");
  EXPECT_EQ(changes_of(load({"dp2", "sweep_llama", 8, {cuda, tp4}}), KnobKind::tensor), "8 on 8, ")
      << "what a machine has";
  EXPECT_EQ(changes_of(load({"cp8", "sweep_llama", 8, {cuda, longer, cp8}}), KnobKind::context),
            "16 on 16, 32 on 32, 64 on 64, ");
  EXPECT_EQ(changes_of(load({"cpu", "sweep_llama", 4, {}}), KnobKind::tensor), "") << "the same memory";
}

TEST(Knobs, OnlyWhatIsNotThereYet) {
  EXPECT_EQ(changes_of(load({"one", "sweep_llama", 1, {}}), KnobKind::sharding), "");
  EXPECT_EQ(changes_of(load({"dp2", "sweep_llama", 2, {}}), KnobKind::sharding),
            "optim on 2, optim_grads on 2, optim_grads_params on 2, ");
  EXPECT_EQ(changes_of(load({"zero2", "sweep_llama", 2, {zero2}}), KnobKind::sharding), "optim_grads_params on 2, ");
  EXPECT_EQ(changes_of(load({"tp1", "sweep_llama", 2, {}}), KnobKind::sequence), "");
  EXPECT_EQ(changes_of(load({"tp2", "sweep_llama", 2, {tp2}}), KnobKind::sequence), "true on 2, ");
  EXPECT_EQ(changes_of(load({"sp", "sweep_llama", 2, {tp2, sp}}), KnobKind::sequence), "");
  EXPECT_EQ(changes_of(load({"full", "sweep_llama", 1, {"model.recompute_granularity=full"}}), KnobKind::recompute),
            "");
}

// 6 experts.
TEST(Knobs, ExpertsAndCapacityForTheirRows) {
  const std::string cuda = "dist.device=cuda", ep2 = "dist.expert_model_parallel_size=2";
  const std::string factor = "model.moe.expert_rank_capacity_factor=";
  EXPECT_EQ(changes_of(load({"dp2", "sweep_moe", 2, {cuda}}), KnobKind::experts), "2 on 2, ");
  EXPECT_EQ(changes_of(load({"dp12", "sweep_moe", 12, {cuda, "train.global_batch_size=24"}}), KnobKind::experts),
            "2 on 12, 6 on 12, ");
  EXPECT_EQ(changes_of(load({"ep2", "sweep_moe", 2, {cuda, ep2}}), KnobKind::experts), "3 on 6, 6 on 6, ");
  EXPECT_EQ(changes_of(load({"dense", "sweep_llama", 2, {cuda}}), KnobKind::experts), "");
  EXPECT_EQ(changes_of(load({"ep1", "sweep_moe", 2, {}}), KnobKind::rows), "") << "what comes is known";
  EXPECT_EQ(changes_of(load({"ep2", "sweep_moe", 2, {ep2}}), KnobKind::rows), "2 on 2, 1.5 on 2, ");
  EXPECT_EQ(changes_of(load({"two", "sweep_moe", 2, {ep2, factor + "2"}}), KnobKind::rows), "1.5 on 2, ");
  EXPECT_EQ(changes_of(load({"drops", "sweep_moe", 2, {ep2, "model.moe.expert_capacity_factor=2"}}), KnobKind::rows),
            "");
}

TEST(SharedMemory, RanksOfOneMachine) {
  const std::vector<std::int64_t> ids{7, -3, 7, 5, -3};
  EXPECT_EQ(ranks_sharing_memory(2, ids), (std::vector{0, 2}));
  EXPECT_EQ(ranks_sharing_memory(4, ids), (std::vector{1, 4}));
  EXPECT_EQ(ranks_sharing_memory(3, ids), (std::vector{3}));
}

}  // namespace
}  // namespace tera::test
