#include "tera/nn/context_attention.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tera {
namespace {

// Keys and values side by side, as they travel: [rows,2GD].
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
  run.ops.copy({.src = k, .dst = to.keys()});
  run.ops.copy({.src = v, .dst = to.values()});
}
void copy_out(Run& run, const KeysValues& from, const Tensor& k, const Tensor& v) {
  run.ops.copy({.src = from.keys(), .dst = k});
  run.ops.copy({.src = from.values(), .dst = v});
}

// A rank's part of what the microbatch has of all places.
Tensor of_rank(const Tensor& all, const ContextParallel& cp, int rank) {
  const std::int64_t each = all ? all.dim(0) / cp.size() : 0;
  return all ? all.rows(rank * each, (rank + 1) * each) : all;
}

// Own queries and all keys, in order.
AttentionShape shape_over_all(const Run& run, const ContextParallel& cp, AttentionShape shape) {
  const AllRows& all = run.mb.all;
  shape.q_offsets = of_rank(all.at_places_offsets, cp, cp.rank());
  shape.k_offsets = run.mb.offsets;
  if (shape.mask == Mask::causal) {
    shape.q_positions = of_rank(all.at_places_positions, cp, cp.rank());
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
  const KeysValues own = KeysValues::take(run.scratch, k.dim(0), k, k.dtype, "context.kv");
  copy_in(run, k, v, own);
  cp.gather(run, own.rows, all.rows);
  return all;
}

void gathered_forward(Run& run, const ContextParallel& cp, AttentionArgs args) {
  const KeysValues all = gather_keys(run, cp, args.k, args.v);
  args.k = all.keys();
  args.v = all.values();
  args.shape = shape_over_all(run, cp, args.shape);
  run.ops.attention(args);
}

void gathered_backward(Run& run, const ContextParallel& cp, AttentionBackArgs args) {
  const KeysValues all = gather_keys(run, cp, args.k, args.v);
  const KeysValues grads = KeysValues::take(run.scratch, all.rows.dim(0), args.k, args.k.dtype, "context.all_dkv");
  const KeysValues own = KeysValues::take(run.scratch, args.k.dim(0), args.k, args.k.dtype, "context.dkv");
  const Tensor dk = std::exchange(args.dk, grads.keys()), dv = std::exchange(args.dv, grads.values());
  args.k = all.keys();
  args.v = all.values();
  args.shape = shape_over_all(run, cp, args.shape);
  run.ops.attention_back(args);
  cp.reduce(run, grads.rows, own.rows);
  copy_out(run, own, dk, dv);
}

// What own queries do with the keys of one rank: which rows of either meet, and under which shape.
struct Meeting {
  std::int64_t q_begin = 0, k_end = 0;
  AttentionShape shape;
  bool none = false;  // they do not
};

// Whether some of the pieces are near enough for a window, where sequences are cut as one.
bool within_window(const ContextParallel& cp, std::int64_t piece, std::int64_t window, int other) {
  const std::array<std::int64_t, 2> queries{cp.rank(), 2 * cp.size() - 1 - cp.rank()},
      keys{other, 2 * cp.size() - 1 - other};
  for (const std::int64_t q : queries)
    for (const std::int64_t k : keys)
      if (k <= q && (q - k - 1) * piece + 1 < window) return true;
  return false;
}

Meeting meet(const Run& run, const ContextParallel& cp, AttentionShape shape, std::int64_t rows, int other) {
  const AllRows& all = run.mb.all;
  const int own = cp.rank();
  Meeting meeting{.q_begin = 0, .k_end = rows, .shape = shape};
  AttentionShape& met = meeting.shape;
  if (met.dropout > 0) {
    met.q_rows = run.mb.rows;
    met.k_rows = of_rank(all.at_places_rows, cp, other);
  }
  met.q_offsets = of_rank(all.at_places_offsets, cp, own);
  met.k_offsets = of_rank(all.at_places_offsets, cp, other);
  if (met.mask == Mask::full) return meeting;
  if (!met.q_offsets && met.window > 0) meeting.none = !within_window(cp, rows / met.batch / 2, met.window, other);
  if (other == own && met.window == 0) return meeting;  // side by side or not, the order is the same
  if (met.q_offsets || met.batch > 1 || met.window > 0) {
    met.q_positions = of_rank(all.at_places_positions, cp, own);
    met.k_positions = of_rank(all.at_places_positions, cp, other);
    return meeting;
  }
  met.mask = Mask::full;
  if (other < own)
    meeting.k_end = rows / 2;
  else
    meeting.q_begin = rows / 2;
  if (met.dropout > 0) {
    met.q_rows = met.q_rows.rows(meeting.q_begin, rows);
    met.k_rows = met.k_rows.rows(0, meeting.k_end);
  }
  return meeting;
}

// Something that goes round the ring: the one that is here, and room for the next.
struct Carousel {
  KeysValues here, coming;
  Ticket arrival{};

  // Sends what is here on, and begins to receive what the rank before has.
  void turn(Run& run, const ContextParallel& cp) {
    const int next = (cp.rank() + 1) % cp.size(), before = (cp.rank() + cp.size() - 1) % cp.size();
    const std::array transfers{Transfer{here.rows, next, true}, Transfer{coming.rows, before, false}};
    arrival = cp.group->exchange(transfers, run.ops.record());
  }
  void arrive(Run& run) {
    run.ops.wait(arrival);
    std::swap(here, coming);
  }
};

Carousel take_carousel(Run& run, const Tensor& like, DType dtype, std::string_view tag) {
  const std::int64_t rows = like.dim(0);
  return {KeysValues::take(run.scratch, rows, like, dtype, tag), KeysValues::take(run.scratch, rows, like, dtype, tag)};
}

int source_of(const ContextParallel& cp, int step) { return (cp.rank() + cp.size() - step) % cp.size(); }

// Parts are summed in fp32: where they are narrower, in memory of their own.
bool is_narrow(const Tensor& part) { return part.dtype != DType::f32; }

void ring_forward(Run& run, const ContextParallel& cp, const AttentionArgs& args) {
  const std::int64_t rows = args.q.dim(0), heads = args.q.dim(1);
  Carousel kv = take_carousel(run, args.k, args.k.dtype, "context.kv");
  const Tensor part = run.scratch.take(args.q.shape, args.q.dtype, "context.part");
  const Tensor part_lse = run.scratch.take(shape(heads, rows), DType::f32, "context.part_lse");
  const bool narrow = is_narrow(args.out);
  const Tensor sum = narrow ? run.scratch.take(args.out.shape, DType::f32, "context.out") : args.out;
  copy_in(run, args.k, args.v, kv.here);
  for (int step = 0; step < cp.size(); ++step) {
    if (step > 0) kv.arrive(run);
    if (step + 1 < cp.size()) kv.turn(run, cp);
    const Meeting met = meet(run, cp, args.shape, rows, source_of(cp, step));
    if (met.none) continue;
    const bool first = step == 0;
    const std::int64_t queries = rows - met.q_begin;
    const Tensor out = first && !narrow ? sum : part.rows(0, queries);
    const Tensor lse = first ? args.lse : make_tensor(part_lse.data, shape(heads, queries), DType::f32);
    run.ops.attention({.q = args.q.rows(met.q_begin, rows),
                       .k = kv.here.keys().rows(0, met.k_end),
                       .v = kv.here.values().rows(0, met.k_end),
                       .out = out,
                       .lse = lse,
                       .shape = met.shape});
    if (!first)
      run.ops.merge_attention({.part = out,
                               .part_lse = lse,
                               .out = sum.rows(met.q_begin, rows),
                               .lse = args.lse.slice(1, met.q_begin, rows)});
    else if (narrow)
      run.ops.copy({.src = out, .dst = sum});
  }
  if (narrow) run.ops.copy({.src = sum, .dst = args.out});
}

// sum += part, of which the first one is the sum; both dense. wide: memory of the sum's dtype, where part is narrower.
void add(Run& run, const Tensor& part, const Tensor& sum, const Tensor& wide, bool first) {
  if (first) return run.ops.copy({.src = part, .dst = sum});
  Tensor added = part;
  if (wide) {
    added = make_tensor(wide.data, part.shape, sum.dtype);
    run.ops.copy({.src = part, .dst = added});
  }
  const std::array sources{sum, added};
  run.ops.combine({.sources = sources, .out = sum});
}

// Of the block that is here: gradients of own queries, and of its keys and values.
void ring_backward(Run& run, const ContextParallel& cp, const AttentionBackArgs& args) {
  const std::int64_t rows = args.q.dim(0), heads = args.q.dim(1);
  Carousel kv = take_carousel(run, args.k, args.k.dtype, "context.kv");
  Carousel grads = take_carousel(run, args.k, DType::f32, "context.dkv");
  const KeysValues part = KeysValues::take(run.scratch, rows, args.k, args.k.dtype, "context.part_dkv");
  const Tensor dq_part = run.scratch.take(args.q.shape, args.q.dtype, "context.part_dq");
  const Tensor dq = run.scratch.take(args.q.shape, DType::f32, "context.dq");
  const Tensor lse_part = run.scratch.take(shape(heads, rows), DType::f32, "context.part_lse");
  const std::int64_t widest = std::max(count(dq.shape), count(grads.here.rows.shape));  // the same on every rank
  const Tensor wide = is_narrow(dq_part) ? run.scratch.take(shape(widest), DType::f32, "context.wide_part") : Tensor{};
  copy_in(run, args.k, args.v, kv.here);
  for (int step = 0; step < cp.size(); ++step) {
    if (step > 0) kv.arrive(run);
    if (step + 1 < cp.size()) kv.turn(run, cp);
    const Meeting met = meet(run, cp, args.shape, rows, source_of(cp, step));
    const std::int64_t queries = rows - met.q_begin;
    const Tensor dq_here = dq_part.rows(0, queries);
    const KeysValues dkv{part.rows.rows(0, met.k_end), part.heads, part.size};
    if (!met.none) {
      Tensor lse = args.lse;
      if (met.q_begin > 0) {
        lse = make_tensor(lse_part.data, shape(heads, queries), DType::f32);
        run.ops.copy({.src = args.lse.slice(1, met.q_begin, rows), .dst = lse});
      }
      run.ops.attention_back({.q = args.q.rows(met.q_begin, rows),
                              .k = kv.here.keys().rows(0, met.k_end),
                              .v = kv.here.values().rows(0, met.k_end),
                              .out = args.out.rows(met.q_begin, rows),
                              .dout = args.dout.rows(met.q_begin, rows),
                              .lse = lse,
                              .dq = dq_here,
                              .dk = dkv.keys(),
                              .dv = dkv.values(),
                              .shape = met.shape});
      add(run, dq_here, dq.rows(met.q_begin, rows), wide, step == 0);
    }
    if (step > 0) grads.arrive(run);
    if (!met.none) add(run, dkv.rows, grads.here.rows.rows(0, met.k_end), wide, step == 0);
    grads.turn(run, cp);
  }
  grads.arrive(run);
  copy_out(run, grads.here, args.dk, args.dv);
  run.ops.copy({.src = dq, .dst = args.dq});
}

}  // namespace

void attend_over_ranks(Run& run, const ContextParallel& cp, const AttentionArgs& own) {
  if (cp.size() == cp.head_ranks()) return run.ops.attention(own);
  ScratchScope scope(run.scratch);
  if (cp.comm == CpCommType::all_gather) return gathered_forward(run, cp, own);
  ring_forward(run, cp, own);
}

void attend_back_over_ranks(Run& run, const ContextParallel& cp, const AttentionBackArgs& own) {
  if (cp.size() == cp.head_ranks()) return run.ops.attention_back(own);
  ScratchScope scope(run.scratch);
  if (cp.comm == CpCommType::all_gather) return gathered_backward(run, cp, own);
  ring_backward(run, cp, own);
}

}  // namespace tera
