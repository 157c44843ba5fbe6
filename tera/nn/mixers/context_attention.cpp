#include "tera/nn/mixers/context_attention.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tera/ops/attention.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"

namespace tera {
namespace {

// Keys and values side by side, as they are sent: [rows,2GD].
struct KeysValues {
  Tensor rows;
  std::int64_t heads, size;

  static KeysValues take(Arena& arena, std::int64_t rows, const Tensor& like, DType dtype, std::string_view tag) {
    const std::int64_t heads = like.dim(1), size = like.dim(2);
    return {arena.take(shape(rows, 2 * heads * size), dtype, tag), heads, size};
  }
  Tensor keys() const { return rows.slice(1, 0, heads * size).split_last(heads, size); }
  Tensor values() const { return rows.slice(1, heads * size, 2 * heads * size).split_last(heads, size); }
};

void copy_in(Run& run, const Tensor& k, const Tensor& v, const KeysValues& to) {
  run.ops(CopyArgs{.src = k, .dst = to.keys()});
  run.ops(CopyArgs{.src = v, .dst = to.values()});
}
void copy_out(Run& run, const KeysValues& from, const Tensor& k, const Tensor& v) {
  run.ops(CopyArgs{.src = from.keys(), .dst = k});
  run.ops(CopyArgs{.src = from.values(), .dst = v});
}

// One rank's rows of a tensor in cp order.
Tensor of_rank(const Tensor& all, const ContextParallel& cp, int rank) {
  const std::int64_t each = all ? all.dim(0) / cp.size() : 0;
  return all ? all.rows(rank * each, (rank + 1) * each) : all;
}

// The shape for local queries and all keys, in order.
AttentionShape shape_over_all(const Run& run, const ContextParallel& cp, AttentionShape shape) {
  const GlobalRows& all = run.mb.all;
  shape.q_offsets = of_rank(all.cp_order_offsets, cp, cp.rank());
  shape.k_offsets = run.mb.offsets;
  if (shape.mask == Mask::causal) {
    shape.q_positions = of_rank(all.cp_order_positions, cp, cp.rank());
    shape.k_positions = all.positions;
  }
  if (shape.dropout > 0) {
    shape.q_rows = run.mb.rows;
    shape.k_rows = all.rows;
  }
  return shape;
}

KeysValues gather_keys(Run& run, const ContextParallel& cp, const Tensor& k, const Tensor& v) {
  const KeysValues all = KeysValues::take(run.scratch, k.dim(0) * cp.size(), k, k.dtype, "context.all_kv");
  ScratchScope scope(run.scratch);
  const KeysValues local = KeysValues::take(run.scratch, k.dim(0), k, k.dtype, "context.kv");
  copy_in(run, k, v, local);
  cp.gather(run, local.rows, all.rows);
  return all;
}

void gathered_forward(Run& run, const ContextParallel& cp, AttentionArgs args) {
  const KeysValues all = gather_keys(run, cp, args.k, args.v);
  args.k = all.keys();
  args.v = all.values();
  args.shape = shape_over_all(run, cp, args.shape);
  run.ops(args);
}

void gathered_backward(Run& run, const ContextParallel& cp, AttentionBackArgs args) {
  const KeysValues all = gather_keys(run, cp, args.k, args.v);
  const KeysValues grads = KeysValues::take(run.scratch, all.rows.dim(0), args.k, args.k.dtype, "context.all_dkv");
  const KeysValues local = KeysValues::take(run.scratch, args.k.dim(0), args.k, args.k.dtype, "context.dkv");
  const Tensor dk = std::exchange(args.dk, grads.keys()), dv = std::exchange(args.dv, grads.values());
  args.k = all.keys();
  args.v = all.values();
  args.shape = shape_over_all(run, cp, args.shape);
  run.ops(args);
  cp.reduce(run, grads.rows, local.rows);
  copy_out(run, local, dk, dv);
}

// One step of ring attention: which local queries attend to which keys of one rank, and under which shape.
struct RingStep {
  std::int64_t q_begin = 0, k_end = 0;  // queries from here on, keys up to here
  AttentionShape shape;
  bool skipped = false;  // no query sees a key
};

// Whether any two zigzag pieces of this rank's queries and the other's keys are near enough for the window; for
// sequences without documents.
bool within_window(const ContextParallel& cp, std::int64_t piece, std::int64_t window, int other) {
  const std::array<std::int64_t, 2> queries{cp.rank(), 2 * cp.size() - 1 - cp.rank()},
      keys{other, 2 * cp.size() - 1 - other};
  for (const std::int64_t q : queries)
    for (const std::int64_t k : keys)
      if (k <= q && (q - k - 1) * piece + 1 < window) return true;
  return false;
}

RingStep ring_step(const Run& run, const ContextParallel& cp, AttentionShape shape, std::int64_t rows, int other) {
  const GlobalRows& all = run.mb.all;
  const int rank = cp.rank();
  RingStep step{.q_begin = 0, .k_end = rows, .shape = shape};
  AttentionShape& in_step = step.shape;
  if (in_step.dropout > 0) {
    in_step.q_rows = run.mb.rows;
    in_step.k_rows = of_rank(all.cp_order_row_ids, cp, other);
  }
  in_step.q_offsets = of_rank(all.cp_order_offsets, cp, rank);
  in_step.k_offsets = of_rank(all.cp_order_offsets, cp, other);
  if (in_step.mask == Mask::full) return step;
  if (!in_step.q_offsets && in_step.window > 0)
    step.skipped = !within_window(cp, rows / in_step.batch / 2, in_step.window, other);
  if (other == rank && in_step.window == 0) return step;  // local rows keep their order, so the causal mask holds
  if (in_step.q_offsets || in_step.batch > 1 || in_step.window > 0) {
    in_step.q_positions = of_rank(all.cp_order_positions, cp, rank);
    in_step.k_positions = of_rank(all.cp_order_positions, cp, other);
    return step;
  }
  in_step.mask = Mask::full;
  if (other < rank)
    step.k_end = rows / 2;
  else
    step.q_begin = rows / 2;
  if (in_step.dropout > 0) {
    in_step.q_rows = in_step.q_rows.rows(step.q_begin, rows);
    in_step.k_rows = in_step.k_rows.rows(0, step.k_end);
  }
  return step;
}

// Double buffer of ring attention: the block that is computed with, and a buffer for the next one.
struct RingBuffer {
  KeysValues current, next;
  Ticket arrival{};

  // Starts to send the current block to the next rank and to receive that of the previous rank.
  void rotate(Run& run, const ContextParallel& cp) {
    const int to = (cp.rank() + 1) % cp.size(), from = (cp.rank() + cp.size() - 1) % cp.size();
    const std::array transfers{Transfer{current.rows, to, true}, Transfer{next.rows, from, false}};
    arrival = cp.group->exchange(transfers, run.ops.record());
  }
  void finish_rotation(Run& run) {
    run.ops.wait(arrival);
    std::swap(current, next);
  }
};

RingBuffer take_ring_buffer(Run& run, const Tensor& like, DType dtype, std::string_view tag) {
  const std::int64_t rows = like.dim(0);
  return {KeysValues::take(run.scratch, rows, like, dtype, tag), KeysValues::take(run.scratch, rows, like, dtype, tag)};
}

int source_of(const ContextParallel& cp, int step) { return (cp.rank() + cp.size() - step) % cp.size(); }

// Partial results are summed in fp32; those of a narrower dtype are converted first.
bool is_narrow(const Tensor& part) { return part.dtype != DType::f32; }

void ring_forward(Run& run, const ContextParallel& cp, const AttentionArgs& args) {
  const std::int64_t rows = args.q.dim(0), heads = args.q.dim(1);
  RingBuffer kv = take_ring_buffer(run, args.k, args.k.dtype, "context.kv");
  const Tensor part = run.scratch.take(args.q.shape, args.q.dtype, "context.part");
  const Tensor part_lse = run.scratch.take(shape(heads, rows), DType::f32, "context.part_lse");
  const bool narrow = is_narrow(args.out);
  const Tensor sum = narrow ? run.scratch.take(args.out.shape, DType::f32, "context.out") : args.out;
  copy_in(run, args.k, args.v, kv.current);
  for (int step = 0; step < cp.size(); ++step) {
    if (step > 0) kv.finish_rotation(run);
    if (step + 1 < cp.size()) kv.rotate(run, cp);
    const RingStep now = ring_step(run, cp, args.shape, rows, source_of(cp, step));
    if (now.skipped) continue;
    const bool first = step == 0;
    const std::int64_t queries = rows - now.q_begin;
    const Tensor out = first && !narrow ? sum : part.rows(0, queries);
    const Tensor lse = first ? args.lse : make_tensor(part_lse.data, shape(heads, queries), DType::f32);
    run.ops(AttentionArgs{.q = args.q.rows(now.q_begin, rows),
                          .k = kv.current.keys().rows(0, now.k_end),
                          .v = kv.current.values().rows(0, now.k_end),
                          .out = out,
                          .lse = lse,
                          .shape = now.shape});
    if (!first)
      run.ops(MergeAttentionArgs{.part = out,
                                 .part_lse = lse,
                                 .out = sum.rows(now.q_begin, rows),
                                 .lse = args.lse.slice(1, now.q_begin, rows)});
    else if (narrow)
      run.ops(CopyArgs{.src = out, .dst = sum});
  }
  if (narrow) run.ops(CopyArgs{.src = sum, .dst = args.out});
}

// sum += part, or with `first` sum = part; both dense. wide: scratch of the sum's dtype, where part is narrower.
void add(Run& run, const Tensor& part, const Tensor& sum, const Tensor& wide, bool first) {
  if (first) return run.ops(CopyArgs{.src = part, .dst = sum});
  Tensor added = part;
  if (wide) {
    added = make_tensor(wide.data, part.shape, sum.dtype);
    run.ops(CopyArgs{.src = part, .dst = added});
  }
  const std::array sources{sum, added};
  run.ops(CombineArgs{.sources = sources, .out = sum});
}

// Backward of ring attention: each step makes gradients of local queries and of the current block's keys and values.
void ring_backward(Run& run, const ContextParallel& cp, const AttentionBackArgs& args) {
  const std::int64_t rows = args.q.dim(0), heads = args.q.dim(1);
  RingBuffer kv = take_ring_buffer(run, args.k, args.k.dtype, "context.kv");
  RingBuffer grads = take_ring_buffer(run, args.k, DType::f32, "context.dkv");
  const KeysValues part = KeysValues::take(run.scratch, rows, args.k, args.k.dtype, "context.part_dkv");
  const Tensor dq_part = run.scratch.take(args.q.shape, args.q.dtype, "context.part_dq");
  const Tensor dq = run.scratch.take(args.q.shape, DType::f32, "context.dq");
  const Tensor lse_part = run.scratch.take(shape(heads, rows), DType::f32, "context.part_lse");
  const std::int64_t widest = std::max(count(dq.shape), count(grads.current.rows.shape));  // equal on every rank
  const Tensor wide = is_narrow(dq_part) ? run.scratch.take(shape(widest), DType::f32, "context.wide_part") : Tensor{};
  copy_in(run, args.k, args.v, kv.current);
  for (int step = 0; step < cp.size(); ++step) {
    if (step > 0) kv.finish_rotation(run);
    if (step + 1 < cp.size()) kv.rotate(run, cp);
    const RingStep now = ring_step(run, cp, args.shape, rows, source_of(cp, step));
    const std::int64_t queries = rows - now.q_begin;
    const Tensor dq_now = dq_part.rows(0, queries);
    const KeysValues dkv{part.rows.rows(0, now.k_end), part.heads, part.size};
    if (!now.skipped) {
      Tensor lse = args.lse;
      if (now.q_begin > 0) {
        lse = make_tensor(lse_part.data, shape(heads, queries), DType::f32);
        run.ops(CopyArgs{.src = args.lse.slice(1, now.q_begin, rows), .dst = lse});
      }
      run.ops(AttentionBackArgs{.q = args.q.rows(now.q_begin, rows),
                                .k = kv.current.keys().rows(0, now.k_end),
                                .v = kv.current.values().rows(0, now.k_end),
                                .out = args.out.rows(now.q_begin, rows),
                                .dout = args.dout.rows(now.q_begin, rows),
                                .lse = lse,
                                .dq = dq_now,
                                .dk = dkv.keys(),
                                .dv = dkv.values(),
                                .shape = now.shape});
      add(run, dq_now, dq.rows(now.q_begin, rows), wide, step == 0);
    }
    if (step > 0) grads.finish_rotation(run);
    if (!now.skipped) add(run, dkv.rows, grads.current.rows.rows(0, now.k_end), wide, step == 0);
    grads.rotate(run, cp);
  }
  grads.finish_rotation(run);
  copy_out(run, grads.current, args.dk, args.dv);
  run.ops(CopyArgs{.src = dq, .dst = args.dq});
}

}  // namespace

void attend_over_ranks(Run& run, const ContextParallel& cp, const AttentionArgs& local) {
  if (cp.size() == cp.head_ranks()) return run.ops(local);
  ScratchScope scope(run.scratch);
  if (cp.comm == CpCommType::all_gather) return gathered_forward(run, cp, local);
  ring_forward(run, cp, local);
}

void attend_back_over_ranks(Run& run, const ContextParallel& cp, const AttentionBackArgs& local) {
  if (cp.size() == cp.head_ranks()) return run.ops(local);
  ScratchScope scope(run.scratch);
  if (cp.comm == CpCommType::all_gather) return gathered_backward(run, cp, local);
  ring_backward(run, cp, local);
}

}  // namespace tera
