#include "tests/parallel/pipeline_rank.h"

#include <fmt/core.h>

#include <algorithm>

#include "tera/backend/cpu/workspace.h"
#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/ops/copy.h"
#include "tests/parallel/stub_comm.h"

namespace tera::test {
namespace {

constexpr std::int64_t rows = pipeline_batch * pipeline_seq;

template <class T>
void upload(Ops& ops, const std::vector<T>& values, const Tensor& to) {
  ops.from_host(std::as_bytes(std::span(values)), to);
}

void append(Ops& ops, const Tensor& from, std::vector<float>& to) {
  std::vector<float> values(static_cast<std::size_t>(count(from.shape)));
  ops.to_host(from, std::as_writable_bytes(std::span(values)));
  to.insert(to.end(), values.begin(), values.end());
}

std::vector<int> even_layers(int num_layers, int stages) {
  std::vector<int> layers;
  for (int i = 0; i < stages; ++i) layers.push_back((i + 1) * num_layers / stages - i * num_layers / stages);
  return layers;
}

// The blocks of each of the rank's chunks; the embedding and the head go with the first and the last virtual stage.
std::vector<ChunkBlocks> chunks_of(const Blocks& blocks, const PipelineCase& one, int rank) {
  const Placement& placement = one.training.placement;
  const int stages = placement.virtual_stages();
  const auto layers = one.layers.empty() ? even_layers(static_cast<int>(blocks.size()) - 2, stages) : one.layers;
  std::vector<ChunkBlocks> chunks(static_cast<std::size_t>(placement.chunks));
  std::size_t begin = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const int ends = (stage == 0 ? 1 : 0) + (stage + 1 == stages ? 1 : 0);
    const auto number = static_cast<std::size_t>(layers.at(static_cast<std::size_t>(stage)) + ends);
    if (placement.rank_of(stage) == rank)
      chunks[static_cast<std::size_t>(placement.chunk_of(stage))] = ChunkBlocks(blocks).subspan(begin, number);
    begin += number;
  }
  require(begin == blocks.size(), "{} of {} blocks have a place", begin, blocks.size());
  return chunks;
}

}  // namespace

GlobalModel::GlobalModel(const ModelShape& model, int microbatches)
    : shape(model),
      ops(1, cpu::best_isa()),
      params(DType::f32),
      blocks(build_blocks(make_spec(shape, 7), params)),
      batch(static_cast<std::size_t>(microbatches)) {
  params.lay_out();
  Arena measured = Arena::measuring();
  bind(measured);
  Arena real(device.allocate(measured.peak()), "model");
  bind(real);
  ops.bind_workspace(device.allocate(std::size_t{1} << 20));
  params.initialize(ops, 11);
  reset();
}

void GlobalModel::bind(Arena& arena) {
  params.bind({arena, arena, &arena, &arena});
  evaluation_batch.clear();
  for (MicroBatch& mb : batch) {
    mb = {.tokens = arena.take(tera::shape(rows), DType::i32, "tokens"),
          .targets = arena.take(tera::shape(rows), DType::i32, "targets"),
          .positions = arena.take(tera::shape(rows), DType::i32, "positions"),
          .rows = arena.take(tera::shape(rows), DType::i64, "rows"),
          .batch = pipeline_batch,
          .token_loss = arena.take(tera::shape(rows), DType::f32, "token_loss"),
          .loss_scale = arena.take(tera::shape(1), DType::f32, "loss_scale")};
    evaluation_batch.push_back(mb);
    evaluation_batch.back().training = false;
  }
}

void GlobalModel::reset() {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Batch values = random_batch(pipeline_batch, pipeline_seq, shape.vocab, 50 + i);
    std::vector<std::int32_t> positions(rows);
    std::vector<std::int64_t> ids(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      positions[row] = static_cast<std::int32_t>(row % pipeline_seq);
      ids[row] = static_cast<std::int64_t>(i * rows + row);
    }
    upload(ops, values.tokens, batch[i].tokens);
    upload(ops, values.targets, batch[i].targets);
    upload(ops, positions, batch[i].positions);
    upload(ops, ids, batch[i].rows);
    upload(ops, std::vector{1.0f / rows}, batch[i].loss_scale);
    ops(FillArgs{.out = batch[i].token_loss, .value = 0});
  }
  for (const auto& group : params.groups()) ops(FillArgs{.out = group.grad, .value = 0});
}

std::vector<float> GlobalModel::gradients() {
  std::vector<float> all;
  for (const auto& group : params.groups()) append(ops, group.grad, all);
  return all;
}

std::vector<float> GlobalModel::losses() {
  std::vector<float> all;
  for (const auto& mb : batch) append(ops, mb.token_loss, all);
  return all;
}

namespace {

// Memory for everything that is kept, never used twice.
struct PlainMemory {
  explicit PlainMemory(GlobalModel& model)
      : kept(model.device.allocate(std::size_t{4} << 20), "plain"),
        replay(model.device.allocate(std::size_t{1} << 20), "replay"),
        scratch(model.device.allocate(std::size_t{1} << 20), "scratch") {}
  Arena kept, replay, scratch;
  Stash stash{kept, kept, kept, replay};
};

struct PlainForward {
  std::vector<std::unique_ptr<Saved>> saved;
  std::vector<Tensor> boundaries;  // x of each block
};

PlainForward forward_plainly(GlobalModel& model, Run& run, Arena& arena) {
  PlainForward result;
  const std::size_t n = model.blocks.size();
  result.boundaries.resize(n + 1);
  for (std::size_t i = 0; i < n; ++i) {
    result.saved.push_back(model.blocks[i]->make_saved());
    if (i + 1 < n) result.boundaries[i + 1] = arena.take(shape(rows, model.shape.hidden), DType::f32, "x");
    model.blocks[i]->forward(run, *result.saved[i], result.boundaries[i], result.boundaries[i + 1]);
  }
  return result;
}

}  // namespace

void run_plainly(GlobalModel& model) {
  for (const MicroBatch& mb : model.batch) {
    PlainMemory memory(model);
    Run run{model.ops, memory.stash, memory.scratch, mb};
    PlainForward forward = forward_plainly(model, run, memory.kept);
    Tensor dy;
    for (std::size_t i = model.blocks.size(); i-- > 0;) {
      const Tensor dx = i > 0 ? memory.kept.take(shape(rows, model.shape.hidden), DType::f32, "dx") : Tensor{};
      model.blocks[i]->backward_input(run, *forward.saved[i], forward.boundaries[i], dy, dx);
      model.blocks[i]->backward_weight(run, *forward.saved[i], dy);
      dy = dx;
    }
  }
}

void evaluate_plainly(GlobalModel& model) {
  for (const MicroBatch& mb : model.evaluation_batch) {
    PlainMemory memory(model);
    Run run{model.ops, memory.stash, memory.scratch, mb};
    forward_plainly(model, run, memory.kept);
  }
}

std::string PipelineCase::describe() const {
  const auto& [stages, chunks, kind] = training.placement;
  return fmt::format("{} stages x {} chunks{}, {} microbatches{}{}", stages, chunks,
                     kind == PlacementKind::v ? " in a V" : "", training.microbatches,
                     layers.empty() ? "" : fmt::format(", layers {}", joined(layers, " ")),
                     overlap ? "" : ", no overlap");
}

PipelineRank::PipelineRank(const ModelShape& shape, const PipelineCase& one, int rank, Comm* pp)
    : model_(shape, one.training.microbatches) {
  stage_ = {.chunks = chunks_of(model_.blocks, one, rank),
            .training = make_stage_plan(one.training, rank),
            .evaluation = make_stage_plan(forward_only(one.training.placement, one.training.microbatches), rank),
            .hidden = shape.hidden,
            .overlap_p2p = one.overlap};
  rehearse();
  stage_.pp = pp;
  if (!pp) return;
  real_ = measured_.allocate_on(model_.device);
  pipeline_ = std::make_unique<Pipeline>(model_.ops, stage_, real_);
}

void PipelineRank::rehearse() {
  const cpu::CpuWorkspaceRules rules(1);
  PlanOps ops(rules);
  StubComm stub(stage_.training.rank, stage_.training.placement.stages);
  stage_.pp = &stub;
  measured_ = StageMemory::measuring(stage_);
  Pipeline rehearsal(ops, stage_, measured_);
  rehearsal.step(model_.batch);
  rehearsal.forward(model_.evaluation_batch);
  planned_messages_ = stub.messages;
  require(ops.workspace_peak() <= std::size_t{1} << 20, "the model has too little workspace");
}

std::string PipelineRank::wrong_memory() const {
  std::vector<std::size_t> planned;
  measured_.visit([&](std::string_view, std::span<const Arena> arenas) {
    for (const Arena& arena : arenas) planned.push_back(arena.peak());
  });
  std::string wrong;
  std::size_t next = 0;
  real_.visit([&](std::string_view name, std::span<const Arena> arenas) {
    for (const Arena& arena : arenas)
      if (const std::size_t plan = planned.at(next++); arena.peak() != plan || arena.mark() != 0)
        wrong += fmt::format("{}: {} of {} planned, {} in use; ", name, arena.peak(), plan, arena.mark());
  });
  return wrong;
}

std::string PipelineRank::uneven_pools() const {
  std::string uneven;
  measured_.visit([&](std::string_view name, std::span<const Arena> arenas) {
    for (const Arena& arena : arenas)
      if (arena.peak() != arenas.front().peak())
        uneven += fmt::format("{}: {} and {}; ", name, arenas.front().peak(), arena.peak());
  });
  return uneven;
}

}  // namespace tera::test
