// Dispatch of rows to experts and back (expert parallelism), between ranks that are threads: each row arrives at the
// ranks of its experts, once for each of them and with its weight, and the results return. Values are integers, so sums
// are exact.

#include "tera/nn/ffn/dispatch.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/world.h"
#include "tera/ops/copy.h"
#include "tera/parallel/groups.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

constexpr std::int64_t tokens = 5, experts = 8, topk = 2, hidden = 3;  // tokens: of each rank

struct Case {
  MeshSizes mesh;
  TokenDispatcher kind = TokenDispatcher::allgather;
  bool uneven = false;  // all tokens choose the same two experts
  double rank_capacity = 0;
};

// Values of token t of the world: tokens are numbered rank after rank.
std::int64_t chosen(const Case& one, std::int64_t token, std::int64_t k) {
  return one.uneven ? (k == 0 ? 5 : 1) : (token * 3 + k * (1 + token % 4)) % experts;
}
float weight_of(std::int64_t token, std::int64_t expert) { return static_cast<float>(token * 16 + expert); }
// The output of one expert-tensor-parallel rank for a token.
float made(std::int64_t token, std::int64_t expert, int etp) {
  return static_cast<float>(token * 8 + expert + 1000 * (etp + 1));
}

class DispatchRank {
 public:
  DispatchRank(const Case& one, RankHandle& rank_handle)
      : case_(one),
        ops_(1, cpu::best_isa()),
        world_(rank_handle.join(ops_)),
        groups_(MeshPlan(one.mesh), rank_handle.rank()),
        first_token_(rank_handle.rank() * tokens),
        bytes_(1 << 20),
        arena_(bytes_, "test") {
    ops_.bind_workspace(workspace_);
    groups_.join(*world_);
    const ExpertParallel parallel{.ep = &groups_.ep,
                                  .etp = &groups_.etp,
                                  .group = &groups_.etp_ep,
                                  .first_rank = rank_handle.rank() - groups_.etp_ep.rank()};
    dispatch_ = make_dispatch(
        one.kind, {.name = "block.mlp", .experts = experts, .topk = topk, .rank_capacity = one.rank_capacity},
        parallel);
    local_experts_ = parallel.local_experts(experts);
    host_offsets_.resize(static_cast<std::size_t>(groups_.etp_ep.size() * (experts + 1)));
    mb_.expert_offsets = host_offsets_;
    if (one.rank_capacity > 0) mb_.expert_overflow = filled(shape(1), DType::i32);
  }

  void execute() {
    Stash stash(arena_, arena_, arena_, arena_);
    std::vector<std::byte> scratch_bytes(1 << 20);
    Arena scratch(scratch_bytes, "scratch");
    Run run{ops_, stash, scratch, mb_};
    Routes routes;
    routes.experts = filled(shape(tokens, topk), DType::i32);
    routes.weights = filled(shape(tokens, topk), DType::f32);
    const Tensor own = filled(shape(tokens, hidden), DType::f32);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t k = 0; k < topk; ++k) {
        const std::int64_t expert = chosen(case_, first_token_ + t, k);
        routes.experts.as<std::int32_t>()[t * topk + k] = static_cast<std::int32_t>(expert);
        routes.weights.as<float>()[t * topk + k] = weight_of(first_token_ + t, expert);
      }
      for (std::int64_t h = 0; h < hidden; ++h)
        own.as<float>()[t * hidden + h] = static_cast<float>((first_token_ + t) * hidden + h);
    }
    Dispatched d = dispatch_->make();
    dispatch_->begin(run, d, routes, own);
    dispatch_->start_dispatch(run, d, routes, own);
    const Tensor first = dispatch_->finish_dispatch(run, d), again = filled(first.shape, DType::f32);
    dispatch_->finish_rows(run, d, dispatch_->start_rows(run, d, own), again);
    const Tensor out = filled(first.shape, DType::f32), dweights = filled(d.weights.shape, DType::f32);
    look_at(d, first, again, out, dweights);
    expect_returned(run, d, out, dweights);
  }

 private:
  Tensor filled(const Shape& shape, DType dtype) {
    const Tensor tensor = arena_.take(shape, dtype, "test");
    ops_(FillArgs{.out = tensor, .value = 0});
    return tensor;
  }

  // Checks which tokens came to which expert, and computes an output for each.
  void look_at(const Dispatched& d, const Tensor& first, const Tensor& again, const Tensor& out,
               const Tensor& dweights) {
    const std::int32_t* offsets = d.offsets.as<std::int32_t>();
    std::vector<std::set<std::int64_t>> came(static_cast<std::size_t>(local_experts_.size()));
    for (std::int64_t g = 0; g < local_experts_.size(); ++g) {
      const std::int64_t expert = local_experts_.begin + g;
      for (std::int64_t row = offsets[g]; row < offsets[g + 1]; ++row) {
        const auto token = static_cast<std::int64_t>(first.as<float>()[row * hidden]) / hidden;
        EXPECT_TRUE(came[static_cast<std::size_t>(g)].insert(token).second) << "twice";
        const std::int32_t source = d.sources.as<std::int32_t>()[row];
        EXPECT_EQ(d.weights.as<float>()[source], weight_of(token, expert));
        dweights.as<float>()[source] = made(token, expert, groups_.coord.etp) + 1;
        for (std::int64_t h = 0; h < hidden; ++h) {
          EXPECT_EQ(first.as<float>()[row * hidden + h], static_cast<float>(token * hidden + h));
          EXPECT_EQ(again.as<float>()[row * hidden + h], static_cast<float>(token * hidden + h));
          out.as<float>()[row * hidden + h] = made(token, expert, groups_.coord.etp);
        }
      }
    }
    // The rows of an expert are those of all tokens that chose it, on all ranks with which this one shares experts.
    const std::int64_t begin = (groups_.rank - groups_.etp_ep.rank()) * tokens;
    for (std::int64_t g = 0; g < local_experts_.size(); ++g) {
      std::set<std::int64_t> wanted;
      for (std::int64_t token = begin; token < begin + groups_.etp_ep.size() * tokens; ++token)
        for (std::int64_t k = 0; k < topk; ++k)
          if (chosen(case_, token, k) == local_experts_.begin + g) wanted.insert(token);
      EXPECT_EQ(came[static_cast<std::size_t>(g)], wanted) << "expert " << local_experts_.begin + g;
    }
  }

  void expect_returned(Run& run, const Dispatched& d, const Tensor& out, const Tensor& dweights) {
    const Tensor sums = filled(shape(tokens, hidden), DType::f32), residual = filled(sums.shape, DType::f32);
    ops_(FillArgs{.out = residual, .value = 7});
    const InFlightTransfer transfer = dispatch_->start_combine(run, d, out, sums, residual);
    const InFlightTransfer returned_gradients = dispatch_->start_weight_gradients(run, d, dweights);
    dispatch_->finish_combine(run, d, transfer, sums, residual);
    const Tensor local_gradients = dispatch_->finish_weight_gradients(run, d, returned_gradients);
    for (std::int64_t t = 0; t < tokens; ++t) {
      float sum = 7;
      for (std::int64_t k = 0; k < topk; ++k) {
        float gradient = 0;
        for (int i = 0; i < groups_.etp.size(); ++i) {
          sum += made(first_token_ + t, chosen(case_, first_token_ + t, k), i);
          gradient += made(first_token_ + t, chosen(case_, first_token_ + t, k), i) + 1;
        }
        EXPECT_EQ(local_gradients.as<float>()[t * topk + k], gradient) << t << " " << k;
      }
      for (std::int64_t h = 0; h < hidden; ++h) EXPECT_EQ(sums.as<float>()[t * hidden + h], sum) << t;
    }
  }

  Case case_;
  std::vector<std::byte> workspace_ = std::vector<std::byte>(1 << 16);
  cpu::CpuOps ops_;
  std::unique_ptr<Comm> world_;
  Groups groups_;
  std::int64_t first_token_;
  std::vector<std::byte> bytes_;
  Arena arena_;
  std::unique_ptr<Dispatch> dispatch_;
  ExpertParallel::Range local_experts_{};
  std::vector<std::int32_t> host_offsets_;
  MicroBatch mb_;
};

void run_case(const Case& one) {
  run_threads(one.mesh.world, {.timeout = std::chrono::seconds(30)}, [&](RankHandle& rank_handle) {
    SCOPED_TRACE(std::string(name_of(one.kind)) + ", rank " + std::to_string(rank_handle.rank()));
    DispatchRank(one, rank_handle).execute();
  });
}

TEST(Dispatch, RowsGoToTheirExpertsAndReturn) {
  for (const MeshSizes& mesh : {MeshSizes{.world = 1}, MeshSizes{.world = 2, .ep = 2, .etp = 1},
                                MeshSizes{.world = 4, .ep = 4, .etp = 1}, MeshSizes{.world = 4, .ep = 2, .etp = 2},
                                MeshSizes{.world = 8, .ep = 2, .etp = 4}, MeshSizes{.world = 8, .ep = 8, .etp = 1},
                                MeshSizes{.world = 8, .ep = 2, .etp = 2}, MeshSizes{.world = 2, .ep = 1, .etp = 2}})
    for (const TokenDispatcher kind : {TokenDispatcher::allgather, TokenDispatcher::alltoall})
      for (const bool uneven : {false, true}) run_case({.mesh = mesh, .kind = kind, .uneven = uneven});
}

// Ranks 0 and 2 of four get all rows, 20 each, where an even load is 10.
TEST(Dispatch, OverflowedRows) {
  Case one{.mesh = {.world = 4, .ep = 4, .etp = 1}, .kind = TokenDispatcher::alltoall, .uneven = true};
  one.rank_capacity = 1.2;  // in sixteens: 16
  const std::string message = message_of<UserError>([&] { run_case(one); });
  EXPECT_EQ(message,
            "rank 0: model.moe.expert_rank_capacity_factor=1.2: the experts of block.mlp have room for 16 rows, and 20 "
            "came; 2 would have held them, and 0 plans for the worst case")
      << "all ranks tell the same";
  one.rank_capacity = 2;
  run_case(one);
}

TEST(Dispatch, CapacitiesAreMultiplesOfAnEvenShare) {
  EXPECT_EQ(local_expert_capacity(0, 100, 400), 400);
  EXPECT_EQ(local_expert_capacity(1, 100, 400), 112);
  EXPECT_EQ(local_expert_capacity(1.3, 100, 400), 144);
  EXPECT_EQ(local_expert_capacity(4, 100, 400), 400);
  EXPECT_EQ(local_expert_capacity(1e300, 100, 400), 400);
  EXPECT_EQ(local_expert_capacity(3.97, 100, 397), 397);
  EXPECT_EQ(padded_rows(1, 100, 8, 50), 13);
  EXPECT_EQ(padded_rows(1e300, 100, 8, 50), 50);
  EXPECT_EQ(padded_rows(1e-9, 100, 8, 50), 1);
}

}  // namespace
}  // namespace tera::test
