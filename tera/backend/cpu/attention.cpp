// Flash attention on the CPU: splits it into tasks of fixed borders. Forward: one task per query head and chunk of
// queries. Backward: one task per kv head and tile, a chunk of queries against a chunk of keys; tiles that add to the
// same rows of dq, dk or dv run in different rounds, one after the other, so sums have one order and need no locks, and
// each score is computed once.

#include <algorithm>

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/kernels/attention.h"
#include "tera/backend/cpu/kernels/attention_mask.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/base/error.h"
#include "tera/ops/attention.h"

namespace tera::cpu {
namespace {

std::size_t storage_index(DType dtype) {
  return static_cast<std::size_t>(dtype == DType::bf16  ? AttentionStorage::bf16
                                  : dtype == DType::f16 ? AttentionStorage::f16
                                                        : AttentionStorage::f32);
}

std::int64_t sequence_count(const AttentionShape& shape) {
  return shape.q_offsets ? shape.q_offsets.dim(0) - 1 : shape.batch;
}

std::int64_t chunks(std::int64_t rows, std::int64_t rows_per_chunk) {
  return (rows + rows_per_chunk - 1) / rows_per_chunk;
}

struct Sequence {
  std::int64_t q_begin = 0, k_begin = 0, queries = 0, keys = 0;
};

void check_offsets(const Tensor& offsets, std::int64_t rows) {
  const auto* offset = offsets.as<std::int32_t>();
  const std::int64_t last = offsets.dim(0) - 1;
  require(offset[0] == 0 && offset[last] == rows, "attention: offsets run from {} to {}, not from 0 to {}", offset[0],
          offset[last], rows);
  for (std::int64_t i = 0; i < last; ++i)
    require(offset[i] <= offset[i + 1], "attention: offset {} is above the next one", i);
}

void check_positions(const Tensor& positions, std::int64_t first, std::int64_t rows) {
  const auto* position = positions.as<std::int32_t>() + first;
  for (std::int64_t i = 0; i < rows; ++i)
    require(i == 0 ? position[i] >= 0 : position[i] > position[i - 1],
            "attention: position {} of row {} does not ascend", position[i], first + i);
}

// The sequences of a call, split into units of work; a table in the workspace finds the sequence of a unit.
class Sequences {
 public:
  Sequences(const AttentionShape& shape, std::int64_t q_rows, std::int64_t k_rows)
      : shape_(shape), count_(sequence_count(shape)), q_rows_(q_rows), k_rows_(k_rows) {
    if (shape.q_offsets) {
      check_offsets(shape.q_offsets, q_rows);
      check_offsets(shape.k_offsets, k_rows);
    }
    for (std::int64_t i = 0; i < count_ && shape.q_positions; ++i) {
      const Sequence each = (*this)[i];
      check_positions(shape.q_positions, each.q_begin, each.queries);
      check_positions(shape.k_positions, each.k_begin, each.keys);
    }
  }

  Sequence operator[](std::int64_t i) const {
    if (!shape_.q_offsets) {
      const std::int64_t queries = q_rows_ / count_, keys = k_rows_ / count_;
      return {i * queries, i * keys, queries, keys};
    }
    const auto* q = shape_.q_offsets.as<std::int32_t>();
    const auto* k = shape_.k_offsets.as<std::int32_t>();
    return {q[i], k[i], q[i + 1] - q[i], k[i + 1] - k[i]};
  }

  // table[i] = number of units of the sequences before i. Returns the total.
  template <class Units>
  std::int64_t fill_table(std::int64_t* table, Units units) {
    table_ = table;
    table[0] = 0;
    for (std::int64_t i = 0; i < count_; ++i) table[i + 1] = table[i] + units((*this)[i]);
    return table[count_];
  }

  struct Unit {
    Sequence sequence;
    std::int64_t index = 0;  // in the sequence
  };
  Unit find(std::int64_t unit) const {
    const std::int64_t i = std::upper_bound(table_, table_ + count_ + 1, unit) - table_ - 1;
    return {(*this)[i], unit - table_[i]};
  }

 private:
  const AttentionShape& shape_;
  std::int64_t count_, q_rows_, k_rows_;
  const std::int64_t* table_ = nullptr;
};

// The workspace: the table of sequences, scratch of each thread, and for backward the fp32 sums of gradients that are
// stored in 16 bits.
struct Layout {
  std::size_t table = 0, scratch = 0, sums = 0;  // bytes of the table, of one thread's scratch, of the sums
  std::size_t bytes(int threads) const { return table + scratch * static_cast<std::size_t>(threads) + sums; }
};

std::size_t padded_to_lines(std::int64_t bytes) { return static_cast<std::size_t>((bytes + 63) / 64 * 64); }

Layout forward_layout(const AttentionArgs& args) {
  return {.table = padded_to_lines((sequence_count(args.shape) + 1) * 8),
          .scratch = padded_to_lines(attention_forward_scratch(args.q.dim(2)) * 4)};
}

// Whether some sequence may need more than one round. Where offsets determine their lengths, the plan assumes it.
bool needs_sums(const AttentionBackArgs& args) {
  const std::int64_t rows = attention_task_rows(args.q.dim(2));
  const bool one_round = !args.shape.q_offsets && std::max(args.q.dim(0), args.k.dim(0)) / args.shape.batch <= rows;
  return args.q.dtype != DType::f32 && !one_round;
}

Layout backward_layout(const AttentionBackArgs& args) {
  Layout layout{.table = padded_to_lines((sequence_count(args.shape) + 1) * 8),
                .scratch = padded_to_lines(attention_backward_scratch(args.q.dim(2)) * 4)};
  if (needs_sums(args)) layout.sums = padded_to_lines((count(args.q.shape) + 2 * count(args.k.shape)) * 4);
  return layout;
}

// The rows of a head, beginning with `row`.
AttentionRows head_rows(const Tensor& tensor, std::int64_t row, std::int64_t head) {
  const std::int64_t offset = row * tensor.stride[0] + head * tensor.dim(2);
  return {static_cast<std::byte*>(tensor.data) + offset * static_cast<std::int64_t>(size_of(tensor.dtype)),
          tensor.stride[0]};
}

AttentionTask make_task(const AttentionShape& shape, const Sequence& sequence, std::int64_t head_size, float* scratch) {
  AttentionTask task;
  task.mask = {sequence.queries, sequence.keys, shape.mask == Mask::causal, shape.window};
  if (shape.q_positions) {
    task.mask.query_positions = shape.q_positions.as<std::int32_t>() + sequence.q_begin;
    task.mask.key_positions = shape.k_positions.as<std::int32_t>() + sequence.k_begin;
  }
  task.dropout.rate = shape.dropout;
  task.dropout.key = shape.key.seed;
  if (shape.dropout > 0) {
    task.dropout.query_ids = shape.q_rows.as<std::int64_t>() + sequence.q_begin;
    task.dropout.key_ids = shape.k_rows.as<std::int64_t>() + sequence.k_begin;
  }
  task.head_size = head_size;
  task.value_size = shape.value_channels(head_size);
  task.scale = shape.scale;
  task.scratch = scratch;
  return task;
}

}  // namespace

std::size_t CpuWorkspaceRules::workspace(const AttentionArgs& args) const {
  return forward_layout(args).bytes(threads_);
}

std::size_t CpuWorkspaceRules::workspace(const AttentionBackArgs& args) const {
  return backward_layout(args).bytes(threads_);
}

template <>
void CpuOps::compute(const AttentionArgs& args) {
  const auto kernel = pick(isa_, []<Isa isa>() -> const AttentionKernels& {
                        return attention_kernels<isa>();
                      }).forward[storage_index(args.q.dtype)];
  const Layout layout = forward_layout(args);
  std::byte* const space = workspace(layout.bytes(pool_.size())).data();
  const std::int64_t heads = args.q.dim(1), group = heads / args.k.dim(1), D = args.q.dim(2);
  const std::int64_t rows = attention_task_rows(D);
  Sequences sequences(args.shape, args.q.dim(0), args.k.dim(0));
  const std::int64_t units = sequences.fill_table(reinterpret_cast<std::int64_t*>(space),
                                                  [&](const Sequence& each) { return chunks(each.queries, rows); });
  pool_.parallel_for(units * heads, [&](std::int64_t index, int worker) {
    const auto [sequence, unit] = sequences.find(index / heads);
    const std::int64_t head = index % heads;
    // Under a causal mask the last queries have the most work: they come first, for balance.
    const std::int64_t begin = (chunks(sequence.queries, rows) - 1 - unit) * rows;
    auto* scratch = reinterpret_cast<float*>(space + layout.table + layout.scratch * static_cast<std::size_t>(worker));
    AttentionForward task{make_task(args.shape, sequence, D, scratch)};
    task.q = head_rows(args.q, sequence.q_begin, head);
    task.k = head_rows(args.k, sequence.k_begin, head / group);
    task.v = head_rows(args.v, sequence.k_begin, head / group);
    task.out = head_rows(args.out, sequence.q_begin, head);
    task.lse = args.lse.as<float>() + head * args.q.dim(0) + sequence.q_begin;
    task.head = args.shape.first_head + head;
    task.begin = begin;
    task.end = std::min(begin + rows, sequence.queries);
    kernel(task);
  });
}

template <>
void CpuOps::compute(const MergeAttentionArgs& args) {
  const auto kernel = pick(isa_, []<Isa isa>() -> const AttentionKernels& {
                        return attention_kernels<isa>();
                      }).merge[storage_index(args.part.dtype)];
  const std::int64_t heads = args.part.dim(1), D = args.part.dim(2);
  run_blocks(pool_, row_blocks(args.part.dim(0), heads * D), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const AttentionRows out = head_rows(args.out, 0, head);
      kernel({.part = head_rows(args.part, 0, head),
              .part_lse = args.part_lse.as<float>() + head * args.part_lse.stride[0],
              .out = static_cast<float*>(out.data),
              .out_stride = out.stride,
              .lse = args.lse.as<float>() + head * args.lse.stride[0],
              .head_size = D,
              .begin = begin,
              .end = end});
    }
  });
}

namespace {

// The tiles of one sequence: `rounds` chunks of queries against `rounds` chunks of keys (the last may be empty). Round
// r computes chunk j of keys against chunk (j + r) mod rounds of queries, so that no two tiles of a round share rows.
class Tiles {
 public:
  Tiles(const AttentionMask& mask, std::int64_t rows)
      : mask_(mask), rows_(rows), rounds_(chunks(std::max(mask.queries, mask.keys), rows)) {}

  AttentionRange queries(std::int64_t chunk) const {
    return intersect({chunk * rows_, (chunk + 1) * rows_}, {0, mask_.queries});
  }
  AttentionRange keys(std::int64_t chunk) const {
    return intersect({chunk * rows_, (chunk + 1) * rows_}, {0, mask_.keys});
  }
  std::int64_t rounds() const { return rounds_; }
  std::int64_t query_chunk(std::int64_t key_chunk, std::int64_t round) const { return (key_chunk + round) % rounds_; }
  std::int64_t key_chunk(std::int64_t query_chunk, std::int64_t round) const {
    return (query_chunk + rounds_ - round) % rounds_;
  }

  bool keys_visible(std::int64_t chunk, std::int64_t round) const {
    return visible(mask_, queries(query_chunk(chunk, round)), keys(chunk));
  }
  bool queries_visible(std::int64_t chunk, std::int64_t round) const {
    return visible(mask_, queries(chunk), keys(key_chunk(chunk, round)));
  }

 private:
  AttentionMask mask_;
  std::int64_t rows_, rounds_;
};

// Whether `holds(round)` is true in some round of [from, to).
template <class Predicate>
bool any_round(std::int64_t from, std::int64_t to, Predicate holds) {
  for (std::int64_t round = from; round < to; ++round)
    if (holds(round)) return true;
  return false;
}

// Gradients of one call: where the rows of a head are written, and where they are accumulated.
struct Gradients {
  const AttentionBackArgs& args;
  float* sums;  // dq, dk, dv, dense; null: in place

  AttentionGradient at(const Tensor& gradient, float* sum, std::int64_t row, std::int64_t head) const {
    AttentionGradient target{head_rows(gradient, row, head)};
    const std::int64_t width = gradient.dim(1) * gradient.dim(2);
    if (gradient.dtype == DType::f32) {
      target.sum = static_cast<float*>(target.out.data);
      target.sum_stride = target.out.stride;
    } else if (sum != nullptr) {
      target.sum = sum + row * width + head * gradient.dim(2);
      target.sum_stride = width;
    }
    return target;
  }
  AttentionGradient dq(std::int64_t row, std::int64_t head) const { return at(args.dq, sums, row, head); }
  AttentionGradient dk(std::int64_t row, std::int64_t head) const {
    return at(args.dk, sums == nullptr ? nullptr : sums + count(args.q.shape), row, head);
  }
  AttentionGradient dv(std::int64_t row, std::int64_t head) const {
    return at(args.dv, sums == nullptr ? nullptr : sums + count(args.q.shape) + count(args.k.shape), row, head);
  }
};

void zero_rows(const AttentionGradient& gradient, AttentionRange rows, std::int64_t columns, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    auto* row = static_cast<std::byte*>(gradient.out.data) + i * gradient.out.stride * size;
    std::fill_n(row, columns * size, std::byte{0});
  }
}

// Writes zero gradients for rows that are masked in every round. Called in the first round.
void zero_masked(const AttentionBackward& task, const Tiles& tiles, std::int64_t chunk, DType dtype) {
  if (!any_round(0, tiles.rounds(), [&](std::int64_t round) { return tiles.queries_visible(chunk, round); }))
    zero_rows(task.dq, tiles.queries(chunk), task.heads * task.head_size, dtype);
  if (any_round(0, tiles.rounds(), [&](std::int64_t round) { return tiles.keys_visible(chunk, round); })) return;
  zero_rows(task.dk, tiles.keys(chunk), task.head_size, dtype);
  zero_rows(task.dv, tiles.keys(chunk), task.head_size, dtype);
}

}  // namespace

template <>
void CpuOps::compute(const AttentionBackArgs& args) {
  const auto kernel = pick(isa_, []<Isa isa>() -> const AttentionBackKernels& {
                        return attention_back_kernels<isa>();
                      }).backward[storage_index(args.q.dtype)];
  const Layout layout = backward_layout(args);
  std::byte* const space = workspace(layout.bytes(pool_.size())).data();
  std::byte* const scratch = space + layout.table;
  std::byte* const sums = scratch + layout.scratch * static_cast<std::size_t>(pool_.size());
  const Gradients gradients{args, layout.sums > 0 ? reinterpret_cast<float*>(sums) : nullptr};
  const std::int64_t kv_heads = args.k.dim(1), group = args.q.dim(1) / kv_heads, D = args.q.dim(2);
  const std::int64_t rows = attention_task_rows(D);
  Sequences sequences(args.shape, args.q.dim(0), args.k.dim(0));
  std::int64_t rounds = 0;
  const std::int64_t units = sequences.fill_table(reinterpret_cast<std::int64_t*>(space), [&](const Sequence& each) {
    const std::int64_t chunk_count = chunks(std::max(each.queries, each.keys), rows);
    rounds = std::max(rounds, chunk_count);
    return chunk_count;
  });

  const auto run_task = [&](std::int64_t round, std::int64_t index, int worker) {
    const auto [sequence, key_chunk] = sequences.find(index / kv_heads);
    const std::int64_t kv_head = index % kv_heads, head = kv_head * group;
    auto* thread_scratch = reinterpret_cast<float*>(scratch + layout.scratch * static_cast<std::size_t>(worker));
    AttentionBackward task{make_task(args.shape, sequence, D, thread_scratch)};
    const Tiles tiles(task.mask, rows);
    if (round >= tiles.rounds()) return;
    task.head = args.shape.first_head + head;
    task.heads = group;
    task.dq = gradients.dq(sequence.q_begin, head);
    task.dk = gradients.dk(sequence.k_begin, kv_head);
    task.dv = gradients.dv(sequence.k_begin, kv_head);
    if (round == 0) zero_masked(task, tiles, key_chunk, args.q.dtype);
    if (!tiles.keys_visible(key_chunk, round)) return;

    const std::int64_t query_chunk = tiles.query_chunk(key_chunk, round);
    const auto keys_visible = [&](std::int64_t other) { return tiles.keys_visible(key_chunk, other); };
    const auto queries_visible = [&](std::int64_t other) { return tiles.queries_visible(query_chunk, other); };
    const bool in_place = args.q.dtype == DType::f32;
    task.dk.first = task.dv.first = !any_round(0, round, keys_visible);
    task.dk.last = task.dv.last = in_place || !any_round(round + 1, tiles.rounds(), keys_visible);
    task.dq.first = !any_round(0, round, queries_visible);
    task.dq.last = in_place || !any_round(round + 1, tiles.rounds(), queries_visible);
    task.q = head_rows(args.q, sequence.q_begin, head);
    task.k = head_rows(args.k, sequence.k_begin, kv_head);
    task.v = head_rows(args.v, sequence.k_begin, kv_head);
    task.out = head_rows(args.out, sequence.q_begin, head);
    task.dout = head_rows(args.dout, sequence.q_begin, head);
    task.lse = args.lse.as<float>() + head * args.q.dim(0) + sequence.q_begin;
    task.lse_step = args.q.dim(0);
    task.q_begin = tiles.queries(query_chunk).begin;
    task.q_end = tiles.queries(query_chunk).end;
    task.k_begin = tiles.keys(key_chunk).begin;
    task.k_end = tiles.keys(key_chunk).end;
    kernel(task);
  };
  for (std::int64_t round = 0; round < rounds; ++round)
    pool_.parallel_for(units * kv_heads, [&](std::int64_t index, int worker) { run_task(round, index, worker); });
}

}  // namespace tera::cpu
