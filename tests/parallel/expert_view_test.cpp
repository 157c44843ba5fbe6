// Parameters of routed experts beside others, on ranks that hold shards of both under two meshes: gradient sums, norm,
// updates, gathered parameters and checkpoints are those of one rank, to the bit.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tera/comm/planned_comm.h"
#include "tera/parallel/mesh_plan.h"
#include "tests/parallel/expert_rank.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

constexpr int steps = 2;
constexpr std::array all_sharding{Sharding::no_shard, Sharding::optim, Sharding::optim_grads,
                                  Sharding::optim_grads_params};

// Replicas of dense and of expert parameters are as many, more of either, or one of either.
std::vector<MeshSizes> meshes() {
  return {{.world = 8, .tp = 2, .ep = 2, .etp = 1},                                               // dp 4, edp 4
          {.world = 8, .tp = 2, .ep = 4, .etp = 1},                                               // dp 4, edp 2
          {.world = 8, .tp = 2, .ep = 2, .etp = 2},                                               // dp 4, edp 2
          {.world = 8, .tp = 2, .ep = 4, .etp = 2},                                               // dp 4, edp 1
          {.world = 8, .tp = 4, .pp = 2, .ep = 2, .etp = 1},                                      // dp 1, edp 2
          {.world = 8, .tp = 4, .ep = 1, .etp = 2},                                               // dp 2, edp 4
          {.world = 8, .tp = 2, .cp = 2, .ep = 4, .etp = 1},                                      // dp_cp 4, edp 2
          {.world = 8, .pp = 2, .ep = 2, .etp = 2},                                               // dp 4, edp 1
          {.world = 8, .tp = 2, .pp = 2, .ep = 2, .etp = 1, .order = MeshOrder::tp_cp_ep_pp_dp},  // dp 2, edp 2
          {.world = 6, .tp = 1, .ep = 2, .etp = 1}};                                              // dp 6, edp 3
}

// The results of one rank after each of the steps.
const ExpertResult& one_rank(DType compute, int step) {
  static std::map<DType, std::array<ExpertResult, steps + 1>> known;
  const auto [found, fresh] = known.try_emplace(compute);
  if (fresh)
    run_threads(1, {}, [&, results = &found->second](RankHandle& rank_handle) {
      ExpertRank rank({.compute = compute}, rank_handle);
      for (int i = 0; i <= steps; ++i) rank.step(i, results->at(static_cast<std::size_t>(i)));
    });
  return found->second.at(static_cast<std::size_t>(step));
}

void expect_as_on_one_rank(const ExpertResult& result, const ExpertCase& one, int step) {
  const ExpertResult& alone = one_rank(one.compute, step);
  for (const Gathered* each : {&result.gradients, &result.values, &result.masters}) {
    EXPECT_TRUE(each->complete());
    EXPECT_FALSE(each->contradicted());
  }
  EXPECT_TRUE(result.gradients.tensors() == alone.gradients.tensors());
  EXPECT_TRUE(result.values.tensors() == alone.values.tensors());
  EXPECT_TRUE(result.masters.tensors() == alone.masters.tensors());
  EXPECT_EQ(std::ssize(result.norms), one.mesh.world);
  for (const float norm : result.norms) EXPECT_EQ(norm, alone.norms.front());
}

void expect_like_one_rank(const ExpertCase& one) {
  SCOPED_TRACE(one.describe());
  std::array<ExpertResult, steps> results;
  run_threads(one.mesh.world, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& rank_handle) {
    ExpertRank rank(one, rank_handle);
    for (int i = 0; i < steps; ++i) rank.step(i, results[static_cast<std::size_t>(i)]);
  });
  for (int i = 0; i < steps; ++i) expect_as_on_one_rank(results[static_cast<std::size_t>(i)], one, i);
}

std::vector<Part> full_parts() {
  ParamStore full(DType::f32);
  ExpertRank::build(full, {}, {}, 0, ExpertRank::layers);
  full.lay_out();
  std::vector<Part> parts;
  for (const Param* param : full.by_name())
    if (param->spec.trainable) parts.insert(parts.end(), param->spec.parts.begin(), param->spec.parts.end());
  return parts;
}

// The reference of the other tests, in fp64 from the definitions.
TEST(ExpertView, OneRankSumsClipsAndUpdates) {
  const OptimizerConfig config = expert_optimizer();
  std::map<std::string, std::vector<double>> first, second;  // moments
  for (int step = 0; step < steps; ++step) {
    const ExpertResult& result = one_rank(DType::f32, step);
    double squares = 0;
    for (const Part& part : full_parts()) {
      const std::vector<float> gradient = global_gradient(part, step);
      EXPECT_TRUE(result.gradients.tensors().at(part.name) == gradient) << part.name;
      for (const float value : gradient) squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double norm = std::sqrt(squares), factor = config.clip_grad / (norm + 1e-6);
    EXPECT_EQ(result.norms.front(), static_cast<float>(norm));
    ASSERT_LT(factor, 1);
    for (const Part& part : full_parts()) {
      const std::vector<float> gradient = global_gradient(part, step);
      auto &m = first[part.name], &v = second[part.name];
      m.resize(gradient.size());
      v.resize(gradient.size());
      double worst = 0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double g = static_cast<double>(gradient[i]) * factor;
        m[i] = config.adam_beta1 * m[i] + (1 - config.adam_beta1) * g;
        v[i] = config.adam_beta2 * v[i] + (1 - config.adam_beta2) * g * g;
        if (step == 0) continue;
        const double before = static_cast<double>(one_rank(DType::f32, step - 1).masters.tensors().at(part.name)[i]);
        const double m_hat = m[i] / (1 - std::pow(config.adam_beta1, step + 1)),
                     v_hat = v[i] / (1 - std::pow(config.adam_beta2, step + 1));
        const double decay = part.global.rank == 2 ? config.weight_decay * before : 0;
        const double after = before - expert_rate * (m_hat / (std::sqrt(v_hat) + config.adam_eps) + decay);
        worst = std::max(worst, std::abs(after - static_cast<double>(result.masters.tensors().at(part.name)[i])));
      }
      EXPECT_LT(worst, 1e-6) << part.name;
    }
  }
}

TEST(ExpertView, EveryLayoutIsAsOneRank) {
  for (const MeshSizes& mesh : meshes())
    for (const Sharding sharding : all_sharding) expect_like_one_rank({.mesh = mesh, .sharding = sharding});
}

TEST(ExpertView, OverlapMastersAndLargeBucketsToo) {
  const std::vector<MeshSizes> all = meshes();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Sharding sharding = all_sharding[i % all_sharding.size()],
                   other = all_sharding[(i + 1) % all_sharding.size()];
    expect_like_one_rank({.mesh = all[i], .sharding = sharding, .overlap = true});
    expect_like_one_rank({.mesh = all[i], .sharding = other, .overlap = true, .compute = DType::bf16});
    expect_like_one_rank({.mesh = all[i], .sharding = sharding, .bucket_size = 1'000'000});
  }
}

// One layout saves a checkpoint and another makes the last step; each piece is in one file (the writer checks that as
// well).
TEST(ExpertView, CheckpointsLoadIntoOtherLayouts) {
  std::vector<MeshSizes> all = meshes();
  all.push_back({.world = 1});
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t shift : {0, 2}) {
      const DType compute = (i + shift) % 4 < 2 ? DType::f32 : DType::bf16;
      const ExpertCase from{.mesh = all[i], .sharding = all_sharding[(i + shift) % 4], .compute = compute};
      const ExpertCase to{.mesh = all[(i + 1 + shift) % all.size()],
                          .sharding = all_sharding[(i + 1 + shift / 2) % 4],
                          .compute = compute};
      SCOPED_TRACE(from.describe() + "\nto " + to.describe());
      const TempFolder folder;
      run_threads(from.mesh.world, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& rank_handle) {
        ExpertRank rank(from, rank_handle);
        ExpertResult unseen;
        for (int step = 0; step < steps; ++step) rank.step(step, unseen);
        rank.save(folder.path(), steps);
      });
      ExpertResult result;
      run_threads(to.mesh.world, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& rank_handle) {
        ExpertRank rank(to, rank_handle);
        rank.load(folder.path());
        rank.step(steps, result);
      });
      expect_as_on_one_rank(result, to, steps);
    }
  }
}

// A bucket holds parameters of one kind in shards of its own, and there are gather buffers only where weights or
// gradients are not kept.
TEST(ExpertView, BucketsKnowTheirKind) {
  const auto laid_out = [](ParamStore& params, const Replicas& replicas) {
    ExpertRank::build(params, {}, {}, 0, ExpertRank::layers);
    params.lay_out(
        {.bucket_size = 1, .bucket_per_block = true, .shards = replicas, .keep_grads = false, .keep_weights = false});
    Arena weights = Arena::measuring(), constants = Arena::measuring(), grads = Arena::measuring();
    params.bind({weights, constants, nullptr, &grads});
  };
  for (const Replicas& replicas : {Replicas{{0, 4}, {0, 1}}, Replicas{{0, 1}, {1, 2}}, Replicas{{3, 4}, {1, 2}}}) {
    ParamStore params(DType::f32);
    laid_out(params, replicas);
    std::int64_t own = 0;
    std::array<std::int64_t, 2> largest{};
    EXPECT_EQ(params.buckets().size(), 2u * ExpertRank::layers);
    for (const Bucket& bucket : params.buckets()) {
      const Replica& expected = replicas.of(bucket.expert);
      for (const Param* param : bucket.params) EXPECT_EQ(param->spec.expert, bucket.expert);
      EXPECT_EQ(bucket.shards.count, expected.count);
      EXPECT_EQ(bucket.local_begin(), bucket.elements() / expected.count * expected.index);
      EXPECT_EQ(bucket.expert, bucket.begin >= params.dense_end());
      EXPECT_EQ(static_cast<bool>(bucket.weight), expected.count == 1);
      EXPECT_EQ(static_cast<bool>(bucket.grad), expected.count == 1);
      EXPECT_EQ(bucket.local_weight.dim(0), bucket.shard_size());
      auto& max_elements = largest[bucket.expert ? 1 : 0];
      max_elements = std::max(max_elements, bucket.elements());
      own += bucket.shard_size();
    }
    EXPECT_EQ(params.shard_elements(), own);
    const bool both = replicas.dense.count > 1 && replicas.expert.count > 1;
    const std::int64_t expected_elements = replicas.expert.count > 1 ? largest[1] : largest[0];
    ASSERT_EQ(params.weight_buffers().size(), both ? 3u : 2u);
    EXPECT_EQ(params.grad_buffers().size(), params.weight_buffers().size());
    EXPECT_EQ(params.weight_buffers().front().dim(0), expected_elements);
  }
}

// Every rank has the same names, and together they hold each element of each expert as often as there are replicas.
TEST(ExpertView, ExpertsAreCutOverEpAndEtp) {
  const MeshPlan plan({.world = 16, .tp = 4, .ep = 2, .etp = 2});
  std::map<std::string, std::int64_t> local_elements;
  std::set<std::vector<std::string>> keys;
  for (int rank = 0; rank < 16; ++rank) {
    Groups groups(plan, rank);
    const ExpertParallel experts{.ep = &groups.ep, .etp = &groups.etp};
    EXPECT_EQ(experts.local_experts(4).begin, 2 * groups.coord.ep);
    EXPECT_EQ(experts.local_experts(4).size(), 2);
    ParamStore params(DType::f32);
    ExpertRank::build(params, {.group = &groups.tp}, experts, 0, 1);
    params.lay_out();
    keys.insert(norm_keys(params));
    for (const Param* param : params.by_name())
      for (const Part& part : param->spec.parts)
        if (param->spec.expert) local_elements[part.name] += count(part.local_shape()) / part.replicas;
  }
  EXPECT_EQ(keys.size(), 1u);
  EXPECT_EQ(local_elements.size(), 4u * 6u);
  for (const auto& [name, elements] : local_elements) {
    const bool small = name.ends_with("frozen.weight") || name.ends_with("unused.weight");
    EXPECT_EQ(elements, 4 * (name.ends_with("bias") ? 20 : small ? 60 : 480)) << name;
  }
}

}  // namespace
}  // namespace tera::test
