#include "tera/pipeline/stage_boundary.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {

StageBoundary::StageBoundary(Ops& ops, const Stage& stage, Arena& buffers)
    : ops_(ops), stage_(stage), arena_(buffers), lanes_(2 * stage.chunks.size()) {
  stage.for_each_plan([&](const StagePlan& plan) {
    for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
      const auto reserve = [&](bool gradient, int number) {
        auto& ring = lane(static_cast<int>(i), gradient).incoming;
        ring.resize(std::max(ring.size(), static_cast<std::size_t>(number)));
      };
      reserve(false, plan.chunks[i].x);
      reserve(true, plan.chunks[i].dy);
    }
  });
}

Shape StageBoundary::shape_of(const MicroBatch& mb) const {
  const std::int64_t rows = mb.tokens.dim(0);
  require(rows % stage_.row_shards == 0, "{} rows are not shared evenly by {} ranks", rows, stage_.row_shards);
  return shape(rows / stage_.row_shards, stage_.hidden);
}

void StageBoundary::begin(const StagePlan& plan, std::span<const MicroBatch> batch) {
  plan_ = &plan;
  batch_ = batch;
  for (int chunk = 0; chunk < plan.placement.chunks; ++chunk) take_buffers(chunk);
}

void StageBoundary::take_buffers(int chunk) {
  Shape longest = shape(0, stage_.hidden);
  for (const MicroBatch& mb : batch_) longest[0] = std::max(longest[0], shape_of(mb)[0]);
  const auto take = [&](std::string_view tag) { return Buffer{arena_.take(longest, stage_.dtype, tag), {}}; };

  const Placement& placement = plan_->placement;
  const ChunkPlan& needs = plan_->chunks[static_cast<std::size_t>(chunk)];
  for (const bool gradient : {false, true}) {
    Lane& crossing = lane(chunk, gradient);
    crossing.slots = static_cast<std::size_t>(gradient ? needs.dy : needs.x);
    for (std::size_t i = 0; i < crossing.slots; ++i)
      crossing.incoming[i] = take(gradient ? "incoming dy" : "incoming x");
    const auto sent = result_of(placement, plan_->rank, {gradient ? Act::B : Act::F, 0, chunk});
    const bool leaves = sent && sent->crosses_ranks(placement) && (plan_->backward || !gradient);
    crossing.outgoing = leaves ? take(gradient ? "outgoing dx" : "outgoing y") : Buffer{};
  }
}

StageBoundary::Buffer& StageBoundary::incoming(const Message& message) {
  Lane& to = lane(plan_->placement.chunk_of(message.to_stage()), message.gradient);
  return to.incoming[static_cast<std::size_t>(message.microbatch) % to.slots];
}

StageBoundary::Buffer& StageBoundary::outgoing(const Message& message) {
  return lane(plan_->placement.chunk_of(message.from_stage), message.gradient).outgoing;
}

Tensor StageBoundary::part(const Buffer& buffer, int microbatch) const {
  return buffer.tensor.rows(0, shape_of(batch_[static_cast<std::size_t>(microbatch)])[0]);
}

void StageBoundary::post(const Exchange& exchange) {
  if (exchange.empty()) return;
  const Ticket now = ops_.record();  // buffers' old content has been read, and what is sent is made
  for (const Message& message : exchange) {
    const bool send = is_mine(message);
    Buffer& buffer = send ? outgoing(message) : incoming(message);
    const int peer = plan_->placement.rank_of(send ? message.to_stage() : message.from_stage);
    const Transfer transfer{.tensor = part(buffer, message.microbatch), .peer = peer, .send = send};
    buffer.ticket = stage_.pp->exchange({&transfer, 1}, now);
  }
  if (stage_.overlap_p2p) return;
  for (const Message& message : exchange)
    if (is_mine(message)) ops_.wait(outgoing(message).ticket);
}

Tensor StageBoundary::input(const Action& action) {
  const auto message = input_of(plan_->placement, plan_->rank, action);
  if (!message) return {};
  const Buffer& buffer = incoming(*message);
  ops_.wait(buffer.ticket);
  return part(buffer, message->microbatch);
}

Tensor StageBoundary::result(const Action& action) {
  const auto message = result_of(plan_->placement, plan_->rank, action);
  if (!message) return {};
  const bool leaves = message->crosses_ranks(plan_->placement);
  const Buffer& buffer = leaves ? outgoing(*message) : incoming(*message);
  if (leaves) ops_.wait(buffer.ticket);
  return part(buffer, message->microbatch);
}

void StageBoundary::end() {
  for (Lane& crossing : lanes_) ops_.wait(crossing.outgoing.ticket);
  arena_.rewind(0);
  plan_ = nullptr;
}

}  // namespace tera
