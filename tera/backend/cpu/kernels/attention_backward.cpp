// Flash attention backward, for a tile of queries and keys. Probabilities are recomputed from the given lse; with them
//   dv += p^T dout,  ds = p (dout v^T - delta),  dk += ds^T q,  dq += ds k,  delta = sum of dout * out over D.
// Scores are in units of log 2: q is packed times scale * log2(e), which dk then takes back.

#include "tera/backend/cpu/kernels/attention_dropout.h"
#include "tera/backend/cpu/kernels/attention_mask.h"
#include "tera/backend/cpu/kernels/attention_tile.h"

namespace tera::cpu {
namespace {

// The scratch of a task. Rows are counted from the task's first query or key.
struct State {
  Floats q, dq;          // [task rows, D], of one head
  Floats k, dk;          // [task rows, D]
  Floats dout, dv;       // [task rows, channels of values]
  float* k_transposed;   // by blocks of keys: [D, block] each
  float* v_transposed;   // by blocks of keys: [D, block] each, of which the channels of values are used
  Floats p, ds;          // [block, block]: scores, then probabilities; their gradients
  float* lse;            // [task rows], in units of log 2; +inf for a query that sees no key
  float* delta;          // [task rows]
  std::ptrdiff_t width;  // D padded to full vectors
  Floats block(float* of, std::ptrdiff_t first_key) const { return {of + first_key * width, attention_block}; }
};

State make_state(const AttentionBackward& task) {
  const std::ptrdiff_t rows = attention_task_rows(task.head_size), width = padded_to_vectors(task.head_size);
  const std::ptrdiff_t values = padded_to_vectors(task.value_size);
  Scratch scratch(task.scratch);
  State state{};
  state.width = width;
  state.q = scratch.take_rows(rows, width);
  state.dout = scratch.take_rows(rows, values);
  state.dq = scratch.take_rows(rows, width);
  state.k = scratch.take_rows(rows, width);
  state.dk = scratch.take_rows(rows, width);
  state.dv = scratch.take_rows(rows, values);
  state.k_transposed = scratch.take(rows * width);
  state.v_transposed = scratch.take(rows * width);
  state.p = scratch.take_rows(attention_block, attention_block);
  state.ds = scratch.take_rows(attention_block, attention_block);
  state.lse = scratch.take(rows);
  state.delta = scratch.take(rows);
  return state;
}

void clear(Floats rows, std::ptrdiff_t count) {
  for (std::ptrdiff_t i = 0; i < count * rows.stride; i += lanes) store(rows.data + i, zero());
}

std::ptrdiff_t size_of(AttentionRange range) { return range.end - range.begin; }

template <class T>
void pack_keys(const AttentionBackward& task, const State& state, AttentionRange keys) {
  const std::ptrdiff_t row = keys.begin - task.k_begin, count = size_of(keys);
  const T* k = source<T>(task.k, keys.begin);
  const T* v = source<T>(task.v, keys.begin);
  pack(k, task.k.stride, count, task.head_size, 1.0f, {state.k.row(row), state.k.stride});
  pack_transposed(k, task.k.stride, count, task.head_size, state.block(state.k_transposed, row));
  pack_transposed(v, task.v.stride, count, task.value_size, state.block(state.v_transposed, row));
}

template <class T>
float dot(const T* a, const T* b, std::ptrdiff_t n) {
  Vec sum = zero();
  std::ptrdiff_t j = 0;
  for (; j + lanes <= n; j += lanes) sum += load(a + j) * load(b + j);
  if (j < n) sum += load_tail(a + j, n - j) * load_tail(b + j, n - j);
  return sum_lanes(sum);
}

// `head` is the index in the group.
template <class T>
void pack_queries(const AttentionBackward& task, const State& state, AttentionRange queries, std::ptrdiff_t head) {
  const std::ptrdiff_t row = queries.begin - task.q_begin, count = size_of(queries), offset = head * task.head_size;
  const T* q = source<T>(task.q, queries.begin) + offset;
  const T* out = source<T>(task.out, queries.begin) + offset;
  const T* dout = source<T>(task.dout, queries.begin) + offset;
  const float* lse = task.lse + head * task.lse_step + queries.begin;
  pack(q, task.q.stride, count, task.head_size, task.scale * log2_e, {state.q.row(row), state.q.stride});
  pack(dout, task.dout.stride, count, task.value_size, 1.0f, {state.dout.row(row), state.dout.stride});
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    state.lse[row + i] = lse[i] == -infinity ? infinity : lse[i] * log2_e;
    state.delta[row + i] = dot(out + i * task.out.stride, dout + i * task.dout.stride, task.value_size);
  }
}

// One block of scores: ranges of queries and keys in the sequence, and the first of each in the task.
struct Block {
  AttentionRange queries, keys;
  std::ptrdiff_t query_row, key_row;
};

// Scores and dout v^T of `height` queries from the block's row `first` on, for the keys they see, in full vectors.
template <int height>
AttentionRange score(const AttentionBackward& task, const State& state, const Block& block, std::ptrdiff_t first) {
  const std::ptrdiff_t query = block.queries.begin + first;
  const AttentionRange seen = intersect(visible_keys(task.mask, query, query + height), block.keys);
  if (seen.empty()) return {0, 0};
  const std::ptrdiff_t from = (seen.begin - block.keys.begin) / lanes * lanes;
  const std::ptrdiff_t to = padded_to_vectors(seen.end - block.keys.begin), row = block.query_row + first;
  Floats keys = state.block(state.k_transposed, block.key_row), values = state.block(state.v_transposed, block.key_row);
  keys.data += from;
  values.data += from;
  multiply<Layout::rows, height>(task.head_size, to - from, {state.q.row(row), state.q.stride}, keys,
                                 {state.p.row(first) + from, state.p.stride}, /*add=*/false);
  multiply<Layout::rows, height>(task.value_size, to - from, {state.dout.row(row), state.dout.stride}, values,
                                 {state.ds.row(first) + from, state.ds.stride}, /*add=*/false);
  return {from, to};
}

// A row of scores becomes probabilities, dout v^T becomes ds; columns outside `computed` become zeros.
void differentiate(const State& state, std::ptrdiff_t row, float* p, float* ds, AttentionRange computed) {
  const float lse = state.lse[row], delta = state.delta[row];
  for (std::ptrdiff_t j = computed.begin; j < computed.end; j += lanes) {
    const Vec probability = exp2_fast(load(p + j) - lse);
    store(p + j, probability);
    store(ds + j, probability * (load(ds + j) - delta));
  }
}

// As differentiate(), with dropout: dropped probabilities pass no gradient, and dv uses the kept ones.
void differentiate_kept(const State& state, std::ptrdiff_t row, float* p, float* ds, AttentionRange computed,
                        const float* keep) {
  const float lse = state.lse[row], delta = state.delta[row];
  for (std::ptrdiff_t j = computed.begin; j < computed.end; j += lanes) {
    const Vec probability = exp2_fast(load(p + j) - lse), kept = load(keep + j);
    store(p + j, probability * kept);
    store(ds + j, probability * (kept * load(ds + j) - delta));
  }
}

void finish_row(const AttentionBackward& task, const State& state, const Block& block, std::int64_t head,
                std::ptrdiff_t i, AttentionRange computed) {
  const std::ptrdiff_t query = block.queries.begin + i, keys = block.keys.end - block.keys.begin;
  float* p = state.p.row(i);
  float* ds = state.ds.row(i);
  AttentionRange seen = intersect(visible_keys(task.mask, query, query + 1), block.keys);
  if (seen.empty()) seen = {block.keys.begin, block.keys.begin};
  fill_columns(p, computed.begin, seen.begin - block.keys.begin, -infinity);
  fill_columns(p, seen.end - block.keys.begin, computed.end, -infinity);
  if (task.dropout.rate > 0) {
    float keep[attention_block] = {};
    draw_kept(task.dropout, head, query, block.keys.begin, keys, keep);
    differentiate_kept(state, block.query_row + i, p, ds, computed, keep);
  } else {
    differentiate(state, block.query_row + i, p, ds, computed);
  }
  const std::ptrdiff_t width = padded_to_vectors(keys);
  fill_columns(p, 0, computed.begin, 0.0f);
  fill_columns(p, computed.end, width, 0.0f);
  fill_columns(ds, 0, computed.begin, 0.0f);
  fill_columns(ds, computed.end, width, 0.0f);
}

// `height` keys from the block's row `first` on: dv += p^T dout, dk += ds^T q, over the queries that see them.
template <int height>
void add_to_keys(const AttentionBackward& task, const State& state, const Block& block, std::ptrdiff_t first) {
  const std::ptrdiff_t key = block.keys.begin + first, row = block.key_row + first;
  const AttentionRange seeing = intersect(seeing_queries(task.mask, key, key + height), block.queries);
  if (seeing.empty()) return;
  const std::ptrdiff_t from = seeing.begin - block.queries.begin, depth = seeing.end - seeing.begin;
  const std::ptrdiff_t query_row = block.query_row + from;
  multiply<Layout::columns, height>(depth, state.dv.stride, {state.p.row(from) + first, state.p.stride},
                                    {state.dout.row(query_row), state.dout.stride},
                                    {state.dv.row(row), state.dv.stride},
                                    /*add=*/true);
  multiply<Layout::columns, height>(depth, state.width, {state.ds.row(from) + first, state.ds.stride},
                                    {state.q.row(query_row), state.q.stride}, {state.dk.row(row), state.dk.stride},
                                    /*add=*/true);
}

// `height` queries from the block's row `first` on: dq += ds k, over the keys they see.
template <int height>
void add_to_queries(const AttentionBackward& task, const State& state, const Block& block, std::ptrdiff_t first) {
  const std::ptrdiff_t query = block.queries.begin + first, row = block.query_row + first;
  const AttentionRange seen = intersect(visible_keys(task.mask, query, query + height), block.keys);
  if (seen.empty()) return;
  const std::ptrdiff_t from = seen.begin - block.keys.begin;
  multiply<Layout::rows, height>(seen.end - seen.begin, state.width, {state.ds.row(first) + from, state.ds.stride},
                                 {state.k.row(block.key_row + from), state.k.stride},
                                 {state.dq.row(row), state.dq.stride},
                                 /*add=*/true);
}

void differentiate_block(const AttentionBackward& task, const State& state, const Block& block, std::int64_t head,
                         Prefetch& next) {
  if (!visible(task.mask, block.queries, block.keys)) return;
  for_each_height(size_of(block.queries), [&]<int height>(std::ptrdiff_t first) {
    next.step(height / 2);
    const AttentionRange computed = score<height>(task, state, block, first);
    for (int i = 0; i < height; ++i) finish_row(task, state, block, head, first + i, computed);
  });
  for_each_height(size_of(block.keys), [&]<int height>(std::ptrdiff_t first) {
    next.step(height / 2);
    add_to_keys<height>(task, state, block, first);
  });
  for_each_height(size_of(block.queries),
                  [&]<int height>(std::ptrdiff_t first) { add_to_queries<height>(task, state, block, first); });
}

template <class T>
void flush(const AttentionGradient& gradient, Floats partial, AttentionRange rows, std::ptrdiff_t columns,
           float scale) {
  for (std::ptrdiff_t i = rows.begin; i < rows.end; ++i) {
    const float* from = partial.row(i - rows.begin);
    float* sum = gradient.sum + i * gradient.sum_stride;
    T* out = static_cast<T*>(gradient.out.data) + i * gradient.out.stride;
    for (std::ptrdiff_t j = 0; j < columns; j += lanes) {
      const std::ptrdiff_t n = columns - j;
      Vec total = load(from + j) * scale;
      if (!gradient.first) total += n >= lanes ? load(sum + j) : load_tail(sum + j, n);
      if (gradient.last && n >= lanes) store(out + j, total);
      if (gradient.last && n < lanes) store_tail(out + j, total, n);
      if (!gradient.last && n >= lanes) store(sum + j, total);
      if (!gradient.last && n < lanes) store_tail(sum + j, total, n);
    }
  }
}

// Walks over the blocks of a task; packs each block of rows before its first use and flushes it after its last.
template <class T>
class Walk {
 public:
  explicit Walk(const AttentionBackward& task) : task_(task), state_(make_state(task)) {
    clear(state_.dk, task.k_end - task.k_begin);
    clear(state_.dv, task.k_end - task.k_begin);
  }

  void run() {
    for (head_ = 0; head_ < task_.heads; ++head_) {
      clear(state_.dq, task_.q_end - task_.q_begin);
      for (std::ptrdiff_t k = task_.k_begin; k < task_.k_end; k += attention_block) walk_keys(keys_from(k));
    }
  }

 private:
  AttentionRange keys_from(std::ptrdiff_t k) const {
    return intersect({k, k + attention_block}, {task_.k_begin, task_.k_end});
  }
  AttentionRange queries_from(std::ptrdiff_t q) const {
    return intersect({q, q + attention_block}, {task_.q_begin, task_.q_end});
  }
  bool last_head() const { return head_ == task_.heads - 1; }

  void walk_keys(AttentionRange keys) {
    if (head_ == 0) pack_keys<T>(task_, state_, keys);
    for (std::ptrdiff_t q = task_.q_begin; q < task_.q_end; q += attention_block) {
      const AttentionRange queries = queries_from(q);
      if (keys.begin == task_.k_begin) pack_queries<T>(task_, state_, queries, head_);
      const Block block{queries, keys, q - task_.q_begin, keys.begin - task_.k_begin};
      Prefetch next = prefetch_rows(block);
      differentiate_block(task_, state_, block, task_.head + head_, next);
      if (keys.end == task_.k_end)
        flush<T>(dq(), rows_of(state_.dq, block.query_row), queries, task_.head_size, task_.scale);
    }
    if (!last_head()) return;
    const std::ptrdiff_t row = keys.begin - task_.k_begin;
    flush<T>(task_.dk, rows_of(state_.dk, row), keys, task_.head_size, ln_2);
    flush<T>(task_.dv, rows_of(state_.dv, row), keys, task_.value_size, 1.0f);
  }

  static Floats rows_of(Floats floats, std::ptrdiff_t row) { return {floats.row(row), floats.stride}; }

  AttentionGradient dq() const {
    AttentionGradient gradient = task_.dq;
    gradient.out.data = static_cast<T*>(gradient.out.data) + head_ * task_.head_size;
    if (gradient.sum != nullptr) gradient.sum += head_ * task_.head_size;
    return gradient;
  }

  // Prefetches the rows that are packed or flushed next.
  Prefetch prefetch_rows(const Block& block) const {
    Prefetch next;
    const auto add = [&](AttentionRows rows, AttentionRange range, std::ptrdiff_t offset) {
      if (!range.empty()) next.add(source<T>(rows, range.begin) + offset, rows.stride, size_of(range), task_.head_size);
    };
    const std::ptrdiff_t offset = head_ * task_.head_size;
    const AttentionRange queries = queries_from(block.queries.end), keys = keys_from(block.keys.end);
    if (block.keys.begin == task_.k_begin) {
      add(task_.q, queries, offset);
      add(task_.out, queries, offset);
      add(task_.dout, queries, offset);
    }
    if (keys.empty()) add(task_.dq.out, block.queries, offset);
    if (block.queries.end != task_.q_end) return next;
    if (head_ == 0) add(task_.k, keys, 0);
    if (head_ == 0) add(task_.v, keys, 0);
    if (last_head()) add(task_.dk.out, block.keys, 0);
    if (last_head()) add(task_.dv.out, block.keys, 0);
    return next;
  }

  const AttentionBackward& task_;
  State state_;
  std::int64_t head_ = 0;
};

template <class T>
void backward(const AttentionBackward& task) {
  Walk<T>(task).run();
}

}  // namespace

template <>
const AttentionBackKernels& attention_back_kernels<TERA_ISA>() {
  static constexpr AttentionBackKernels kernels{{backward<float>, backward<Bf16>, backward<Fp16>}};
  return kernels;
}

}  // namespace tera::cpu
