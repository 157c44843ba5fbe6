// Flash attention forward with online softmax: over the blocks of keys, each query keeps the maximum of its scores, the
// sum of their exponentials and the weighted sum of values. Scores are in units of log 2: q is packed times scale *
// log2(e).

#include <math.h>

#include "tera/backend/cpu/kernels/attention_dropout.h"
#include "tera/backend/cpu/kernels/attention_mask.h"
#include "tera/backend/cpu/kernels/attention_tile.h"

namespace tera::cpu {
namespace {

// The scratch of a task.
struct State {
  Floats q;                  // [task rows, D]
  Floats out;                // [task rows, channels of values]
  Floats k_transposed;       // [D, block]
  Floats v;                  // [block, channels of values]
  Floats scores;             // [tile rows, block]; then probabilities
  float* maximum = nullptr;  // [task rows]: of the scores so far
  Floats sums;               // [task rows, lanes]: sum of exponentials so far, by lane
};

State make_state(const AttentionForward& task) {
  const std::ptrdiff_t rows = attention_task_rows(task.head_size), width = padded_to_vectors(task.head_size);
  const std::ptrdiff_t values = padded_to_vectors(task.value_size);
  Scratch scratch(task.scratch);
  State state;
  state.q = scratch.take_rows(rows, width);
  state.out = scratch.take_rows(rows, values);
  state.k_transposed = scratch.take_rows(width, attention_block);
  state.v = scratch.take_rows(attention_block, values);
  state.scores = scratch.take_rows(attention_block, attention_block);
  state.maximum = scratch.take(rows);
  state.sums = scratch.take_rows(rows, lanes);
  for (std::ptrdiff_t i = 0; i < task.end - task.begin; ++i) {
    state.maximum[i] = -infinity;
    store(state.sums.row(i), zero());
    for (std::ptrdiff_t j = 0; j < values; j += lanes) store(state.out.row(i) + j, zero());
  }
  return state;
}

// Turns a row of scores, columns [from, to) in full vectors, into probabilities relative to the maximum so far, and
// rescales the earlier sums to that maximum.
void softmax_row(const State& state, std::ptrdiff_t row, float* scores, std::ptrdiff_t from, std::ptrdiff_t to) {
  Vec highest = splat(state.maximum[row]);
  for (std::ptrdiff_t j = from; j < to; j += lanes) highest = vmax(highest, load(scores + j));
  highest = broadcast_max(highest);
  const float before = state.maximum[row], after = highest[0];
  // While every score is -inf, exponents are relative to 0: all probabilities are 0, not NaN.
  const Vec base = after == -infinity ? zero() : highest;
  Vec sum = load(state.sums.row(row));
  if (after != before) {
    const Vec shrink = exp2_fast(splat(before) - base);
    sum *= shrink;
    float* out = state.out.row(row);
    for (std::ptrdiff_t j = 0; j < state.out.stride; j += lanes) store(out + j, load(out + j) * shrink);
    state.maximum[row] = after;
  }
  for (std::ptrdiff_t j = from; j < to; j += lanes) {
    const Vec p = exp2_fast(load(scores + j) - base);
    sum += p;
    store(scores + j, p);
  }
  store(state.sums.row(row), sum);
}

void drop_row(const AttentionForward& task, std::ptrdiff_t query, std::ptrdiff_t first_key, AttentionRange columns,
              float* probabilities) {
  float keep[attention_block];
  draw_kept(task.dropout, task.head, query, first_key + columns.begin, columns.end - columns.begin, keep);
  for (std::ptrdiff_t j = columns.begin; j < columns.end; ++j) probabilities[j] *= keep[j - columns.begin];
}

// `height` queries from `first` on (index in the task) against the packed block of keys.
template <int height>
void attend(const AttentionForward& task, const State& state, std::ptrdiff_t first, AttentionRange block) {
  const std::ptrdiff_t query = task.begin + first;
  const AttentionRange seen = intersect(visible_keys(task.mask, query, query + height), block);
  if (seen.empty()) return;
  const std::ptrdiff_t begin = seen.begin - block.begin, end = seen.end - block.begin;
  const std::ptrdiff_t from = begin / lanes * lanes, to = padded_to_vectors(end);
  const Floats keys{state.k_transposed.data + from, state.k_transposed.stride};
  multiply<Layout::rows, height>(task.head_size, to - from, {state.q.row(first), state.q.stride}, keys,
                                 {state.scores.data + from, state.scores.stride}, /*add=*/false);
  for (int i = 0; i < height; ++i) {
    float* scores = state.scores.row(i);
    AttentionRange visible = intersect(visible_keys(task.mask, query + i, query + i + 1), block);
    if (visible.empty()) visible = {block.begin + from, block.begin + from};
    fill_columns(scores, from, visible.begin - block.begin, -infinity);
    fill_columns(scores, visible.end - block.begin, to, -infinity);
    softmax_row(state, first + i, scores, from, to);
    if (task.dropout.rate > 0) drop_row(task, query + i, block.begin, {begin, end}, scores);
  }
  multiply<Layout::rows, height>(end - begin, state.out.stride, {state.scores.data + begin, state.scores.stride},
                                 {state.v.row(begin), state.v.stride}, {state.out.row(first), state.out.stride},
                                 /*add=*/true);
}

template <class T>
void finish(const AttentionForward& task, const State& state) {
  for (std::ptrdiff_t i = 0; i < task.end - task.begin; ++i) {
    const float sum = sum_lanes(load(state.sums.row(i)));
    const bool blind = sum == 0.0f;
    const float inverse = blind ? 0.0f : 1.0f / sum;
    task.lse[task.begin + i] = blind ? -infinity : (state.maximum[i] + log2f(sum)) * ln_2;
    const float* from = state.out.row(i);
    T* to = static_cast<T*>(task.out.data) + (task.begin + i) * task.out.stride;
    std::ptrdiff_t j = 0;
    for (; j + lanes <= task.value_size; j += lanes) store(to + j, load(from + j) * inverse);
    if (j < task.value_size) store_tail(to + j, load(from + j) * inverse, task.value_size - j);
  }
}

// Prefetches the rows that the next block of keys reads; after the last one, those that finish() writes.
template <class T>
Prefetch next_rows(const AttentionForward& task, std::ptrdiff_t key, std::ptrdiff_t end) {
  Prefetch next;
  const std::ptrdiff_t rows = end - key < attention_block ? end - key : attention_block;
  if (rows > 0) {
    next.add(source<T>(task.k, key), task.k.stride, rows, task.head_size);
    next.add(source<T>(task.v, key), task.v.stride, rows, task.value_size);
  } else {
    next.add(source<T>(task.out, task.begin), task.out.stride, task.end - task.begin, task.value_size);
  }
  return next;
}

template <class T>
void forward(const AttentionForward& task) {
  const State state = make_state(task);
  const std::ptrdiff_t rows = task.end - task.begin;
  const AttentionRange keys = visible_keys(task.mask, task.begin, task.end);
  const std::ptrdiff_t first_key = keys.begin / attention_block * attention_block;
  next_rows<T>(task, first_key, keys.end).step(attention_block);
  pack(source<T>(task.q, task.begin), task.q.stride, rows, task.head_size, task.scale * log2_e, state.q);
  for (std::ptrdiff_t k = first_key; k < keys.end; k += attention_block) {
    const AttentionRange block = intersect({k, k + attention_block}, {0, task.mask.keys});
    const std::ptrdiff_t count = block.end - block.begin;
    pack_transposed(source<T>(task.k, k), task.k.stride, count, task.head_size, state.k_transposed);
    pack(source<T>(task.v, k), task.v.stride, count, task.value_size, 1.0f, state.v);
    const AttentionRange seeing = intersect(seeing_queries(task.mask, block.begin, block.end), {task.begin, task.end});
    Prefetch next = next_rows<T>(task, k + attention_block, keys.end);
    for_each_height(
        seeing.end - task.begin,
        [&]<int height>(std::ptrdiff_t first) {
          next.step(height);
          attend<height>(task, state, first, block);
        },
        seeing.begin - task.begin);
  }
  finish<T>(task, state);
}

// The weights of the two outputs are exp(a - both) and exp(b - both), where both is the log of exp(a) + exp(b).
template <class T>
void merge(const AttentionMerge& task) {
  for (std::ptrdiff_t i = task.begin; i < task.end; ++i) {
    const float a = task.lse[i], b = task.part_lse[i];
    if (b == -infinity) continue;
    const float larger = a > b ? a : b, both = larger + logf(expf(a - larger) + expf(b - larger));
    const Vec before = splat(expf(a - both)), added = splat(expf(b - both));
    task.lse[i] = both;
    float* out = task.out + i * task.out_stride;
    const T* part = source<T>(task.part, i);
    std::ptrdiff_t j = 0;
    for (; j + lanes <= task.head_size; j += lanes) store(out + j, load(out + j) * before + load(part + j) * added);
    if (const std::ptrdiff_t n = task.head_size - j; n > 0)
      store_tail(out + j, load_tail(out + j, n) * before + load_tail(part + j, n) * added, n);
  }
}

}  // namespace

template <>
const AttentionKernels& attention_kernels<TERA_ISA>() {
  static constexpr AttentionKernels kernels{{forward<float>, forward<Bf16>, forward<Fp16>},
                                            {merge<float>, merge<Bf16>, merge<Fp16>}};
  return kernels;
}

}  // namespace tera::cpu
