#include "tera/comm/mpi/task_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "tera/base/joined.h"
#include "tera/ops/combine.h"

namespace tera::mpi {
namespace {

constexpr std::size_t staging_buffers = 4;  // reductions that receive at the same time; others wait
constexpr std::size_t max_sum_piece = std::size_t{256} << 10, half_staging = std::size_t{4} << 20, page = 4096;
constexpr std::size_t max_pieces_in_flight = 2;  // limit for a lane

bool is_exchange(const Task& task) { return task.collective == 0; }
bool sums(const Task& task) { return task.sum.shape.rank > 0; }

[[noreturn]] void disagree(const std::string& message, std::source_location where = std::source_location::current()) {
  throw CommError(message, where);
}

std::int64_t count_pieces(std::size_t bytes, std::size_t limit) {
  return static_cast<std::int64_t>((bytes + limit - 1) / limit);
}

// Bytes of all pieces but the last. They are about equal: a small last one would be sent eagerly before its receive is
// posted, and MPI would have to buffer it.
std::size_t even_piece(std::size_t bytes, std::size_t limit) {
  constexpr std::size_t line = 64;
  const auto pieces = static_cast<std::size_t>(std::max<std::int64_t>(1, count_pieces(bytes, limit)));
  return ((bytes + pieces - 1) / pieces + line - 1) / line * line;
}

template <class Visit>
void each_lane(const Task& task, const Visit& visit) {
  for (std::size_t i = 0; i < task.lanes; ++i) visit(task.group->lane(task, i));
}

template <class Test>
bool all_lanes(const Task& task, const Test& test) {
  bool all = true;
  each_lane(task, [&](const Lane& lane) { all = all && test(lane); });
  return all;
}

}  // namespace

std::size_t sum_piece(int ranks) {
  const std::size_t others = static_cast<std::size_t>(std::max(1, ranks - 1));
  return std::clamp(half_staging / others / page * page, page, max_sum_piece);
}

TaskRunner::TaskRunner(Wire& wire, Ops& combiner) : wire_(wire), combiner_(combiner) {
  const std::size_t others = static_cast<std::size_t>(std::max(1, wire.size() - 1));
  const std::size_t bytes = 2 * std::min(half_staging, max_sum_piece * others);
  staging_memory_ = std::make_unique_for_overwrite<std::byte[]>(staging_buffers * bytes);
  for (std::size_t i = 0; i < staging_buffers; ++i)
    staging_buffers_.push_back({.memory = staging_memory_.get() + i * bytes});
  sources_.resize(static_cast<std::size_t>(wire.size()));
  active_.reserve(1024);
  unexpected_.reserve(1024);
}

bool TaskRunner::take_any_done() { return std::exchange(any_done_, false); }

void TaskRunner::start(Task& task) {
  active_.push_back(&task);
  std::erase_if(unexpected_, [&](Message* message) { return match(task, *message); });
  if (task.then == nullptr) return;
  task.then->after = &task;
  start(*task.then);
}

void TaskRunner::accept(Message& message) {
  for (Task* task : active_)
    if (match(*task, message)) return;
  unexpected_.push_back(&message);
}

// Gives the message to the lane of this task that it announces, if there is one.
bool TaskRunner::match(Task& task, Message& message) {
  const Header& header = message.header;
  const bool collective = header.call.kind != CallKind::exchange;
  if (task.group->id != header.group || collective == is_exchange(task)) return false;
  if (collective && task.collective != header.number) return false;
  for (std::size_t i = 0; i < task.lanes; ++i) {
    Lane& lane = task.group->lane(task, i);
    if (lane.send || lane.peer != header.from || lane.number != header.number || lane.message || lane.open) continue;
    lane.message = &message;
    return true;
  }
  return false;
}

void TaskRunner::piece_moved(const MovedPiece& piece) {
  piece.lane->moved += piece.bytes;
  piece.lane->arrived[static_cast<std::size_t>(piece.piece % 2)] = true;
}

void TaskRunner::advance() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Task* task : active_) changed = advance(*task) || changed;
    for (Task*& task : active_)
      if (complete(*task)) {
        finish(*task);
        task = nullptr;
        changed = true;
      }
    std::erase(active_, nullptr);
  }
}

bool TaskRunner::advance(Task& task) {
  bool changed = false;
  if (task.after != nullptr) return false;
  if (!task.begun) {
    task.begun = changed = true;
    each_lane(task, [&](Lane& lane) {
      if (lane.send) announce(task, lane);
    });
  }
  changed = open_lanes(task) || changed;
  each_lane(task, [&](Lane& lane) {
    if (lane.send || lane.memory != nullptr) changed = move(task, lane) || changed;
  });
  if (sums(task) && task.met) changed = sum(task) || changed;
  return changed;
}

void TaskRunner::announce(Task& task, Lane& lane) {
  Message& message = wire_.take();
  message.header = {.group = task.group->id,
                    .from = task.group->rank,
                    .number = lane.number,
                    .call = task.call,
                    .dtype = lane.tensor.dtype,
                    .shape = lane.tensor.shape,
                    .rows = lane.rows,
                    .bytes = lane.bytes};
  lane.open = true;
  const bool inside = lane.bytes <= Message::capacity;
  if (inside) {
    if (lane.bytes > 0) std::memcpy(message.payload.data(), lane.memory, lane.bytes);
    lane.started = lane.moved = lane.bytes;
  } else {
    message.header.tag = lane.tag = wire_.next_tag();
  }
  wire_.send(task.group->world_rank(lane.peer), message, inside ? lane.bytes : 0);
}

bool TaskRunner::open_lanes(Task& task) {
  bool changed = false;
  if (is_exchange(task)) {
    each_lane(task, [&](Lane& lane) {
      if (lane.message == nullptr) return;
      open(task, lane);
      changed = true;
    });
  } else if (!task.met && all_lanes(task, [](const Lane& lane) { return lane.send || lane.message != nullptr; })) {
    compare_calls(task);
    task.met = changed = true;
    each_lane(task, [&](Lane& lane) {
      if (!lane.send) open(task, lane);
    });
  }
  return changed;
}

void TaskRunner::compare_calls(Task& task) {
  const Group& group = *task.group;
  if (all_lanes(task, [&](const Lane& lane) { return lane.send || lane.message->header.call == task.call; })) return;
  std::vector<std::string> calls(group.members.size());
  const auto add = [&](int rank, const Call& call) {
    calls[static_cast<std::size_t>(rank)] = fmt::format("rank {}: {}", group.world_rank(rank), to_string(call));
  };
  add(group.rank, task.call);
  each_lane(task, [&](const Lane& lane) {
    if (!lane.send) add(lane.peer, lane.message->header.call);
  });
  disagree(fmt::format("{}: the ranks make different calls: {}", group.name, joined(calls, "; ")));
}

void TaskRunner::check_lane(const Task& task, const Lane& lane) const {
  const Header& header = lane.message->header;
  const Group& group = *task.group;
  const int sender = group.world_rank(lane.peer), receiver = group.world_rank(group.rank);
  if (header.rows != lane.rows)
    disagree(fmt::format("{}: all_to_all: rank {} sends {} rows to rank {}, which expects {}", group.name, sender,
                         header.rows, receiver, lane.rows));
  if (header.bytes == lane.bytes && header.dtype == lane.tensor.dtype) return;
  disagree(fmt::format("{}: {}: rank {} sends {}{} to rank {}, which expects {}{}", group.name, name_of(task.call.kind),
                       sender, name_of(header.dtype), to_string(header.shape), receiver, name_of(lane.tensor.dtype),
                       to_string(lane.tensor.shape)));
}

// A message with the input of a reduction inside is kept until that is added.
void TaskRunner::open(Task& task, Lane& lane) {
  check_lane(task, lane);
  lane.open = true;
  lane.tag = lane.message->header.tag;
  if (lane.bytes <= Message::capacity) {
    if (lane.memory == nullptr && lane.bytes > 0) return;
    if (lane.bytes > 0) std::memcpy(lane.memory, lane.message->payload.data(), lane.bytes);
    lane.started = lane.moved = lane.bytes;
  }
  wire_.release(*lane.message);
  lane.message = nullptr;
}

bool TaskRunner::move(Task& task, Lane& lane) {
  bool changed = false;
  const int peer = task.group->world_rank(lane.peer);
  const std::size_t piece_bytes = even_piece(lane.bytes, task.piece);
  while (lane.open && lane.started < lane.bytes && lane.started - lane.moved < max_pieces_in_flight * piece_bytes) {
    const std::size_t bytes = std::min(piece_bytes, lane.bytes - lane.started);
    const MovedPiece piece{.task = &task, .lane = &lane, .bytes = bytes};
    if (lane.send)
      wire_.send_bytes(peer, lane.tag, lane.memory + lane.started, piece);
    else
      wire_.receive_bytes(peer, lane.tag, lane.memory + lane.started, piece);
    lane.started += bytes;
    changed = true;
  }
  return changed;
}

// Staging is taken only when all have announced the call: their sends are then in flight and depend on nothing, so a
// task that has staging always finishes and frees it.
bool TaskRunner::sum(Task& task) {
  const std::int64_t pieces = count_pieces(task.local.bytes(), task.piece);
  if (task.pieces_summed == pieces || !take_staging(task)) return false;
  bool changed = false;
  for (; task.pieces_posted < std::min(pieces, task.pieces_summed + 2); changed = true) post_piece_receive(task);
  for (; task.pieces_summed < task.pieces_posted && piece_has_arrived(task); changed = true)
    sum_piece_of(task, task.pieces_summed++);
  if (task.pieces_summed == pieces && task.staging != nullptr) {
    task.staging->taken = false;
    task.staging = nullptr;
  }
  return changed;
}

bool TaskRunner::take_staging(Task& task) {
  if (task.staging != nullptr || task.local.bytes() <= Message::capacity) return true;
  const auto found =
      std::find_if(staging_buffers_.begin(), staging_buffers_.end(), [](const StagingBuffer& s) { return !s.taken; });
  if (found == staging_buffers_.end()) return false;
  found->taken = true;
  task.staging = &*found;
  return true;
}

// Where a rank's piece is received; in small reductions, the message that holds it.
std::byte* TaskRunner::staged(const Task& task, std::int64_t piece, int peer) const {
  const int others = task.group->size() - 1, index = peer < task.group->rank ? peer : peer - 1;
  if (task.staging == nullptr) {
    for (std::size_t i = 0; i < task.lanes; ++i) {
      const Lane& lane = task.group->lane(task, i);
      if (!lane.send && lane.peer == peer) return lane.message->payload.data();
    }
  }
  return task.staging->memory + static_cast<std::size_t>(piece % 2 * others + index) * task.piece;
}

void TaskRunner::post_piece_receive(Task& task) {
  const std::int64_t piece = task.pieces_posted++;
  each_lane(task, [&](Lane& lane) {
    if (lane.send || lane.message != nullptr) return;
    const std::size_t bytes = std::min(even_piece(lane.bytes, task.piece), lane.bytes - lane.started);
    lane.arrived[static_cast<std::size_t>(piece % 2)] = false;
    wire_.receive_bytes(task.group->world_rank(lane.peer), lane.tag, staged(task, piece, lane.peer),
                        {.task = &task, .lane = &lane, .bytes = bytes, .piece = piece});
    lane.started += bytes;
  });
}

bool TaskRunner::piece_has_arrived(Task& task) {
  const auto slot = static_cast<std::size_t>(task.pieces_summed % 2);
  return all_lanes(task, [&](const Lane& lane) { return lane.send || lane.message != nullptr || lane.arrived[slot]; });
}

void TaskRunner::sum_piece_of(Task& task, std::int64_t piece) {
  const Group& group = *task.group;
  const std::size_t piece_bytes = even_piece(task.local.bytes(), task.piece);
  const auto elements = static_cast<std::int64_t>(piece_bytes / size_of(task.local.dtype));
  const std::int64_t begin = piece * elements, end = std::min(task.local.dim(0), begin + elements);
  for (int r = 0; r < group.size(); ++r)
    sources_[static_cast<std::size_t>(r)] =
        r == group.rank ? task.local.rows(begin, end)
                        : make_tensor(staged(task, piece, r), shape(end - begin), task.local.dtype);
  combiner_(CombineArgs{.sources = std::span(sources_).first(group.members.size()),
                        .out = task.sum.rows(begin, end),
                        .how = task.call.how});
  if (task.staging != nullptr) return;
  each_lane(task, [&](Lane& lane) {  // a small reduction, whose messages were kept
    if (lane.message == nullptr) return;
    wire_.release(*lane.message);
    lane.message = nullptr;
    lane.started = lane.moved = lane.bytes;
  });
}

bool TaskRunner::complete(Task& task) {
  return task.begun && (is_exchange(task) || task.met) &&
         all_lanes(task, [](const Lane& lane) { return lane.open && lane.moved == lane.bytes; }) &&
         (!sums(task) || task.pieces_summed == count_pieces(task.local.bytes(), task.piece));
}

// After this the task belongs to the rank again.
void TaskRunner::finish(Task& task) {
  for (Task* other : active_)
    if (other != nullptr && other->after == &task) other->after = nullptr;
  any_done_ = true;
  task.done.store(true);
}

std::vector<int> TaskRunner::absent(const Task& task) const {
  std::vector<int> ranks;
  const auto add = [&](const auto& waits) {
    each_lane(task, [&](const Lane& lane) {
      const int rank = task.group->world_rank(lane.peer);
      if (waits(lane) && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    });
  };
  if (!is_exchange(task)) add([](const Lane& lane) { return !lane.send && !lane.open && lane.message == nullptr; });
  if (ranks.empty()) add([](const Lane& lane) { return !lane.open || lane.moved < lane.bytes; });
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void TaskRunner::drop_all() {
  active_.clear();
  unexpected_.clear();
}

}  // namespace tera::mpi
