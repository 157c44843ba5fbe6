#pragma once
#include "tera/base/kinds.h"
#include "tera/base/rng.h"
#include "tera/ops/op_list.h"
#include "tera/tensor/tensor.h"

namespace tera {

// Arguments shared by forward and backward. Rows of q, k, v are tokens of packed sequences: either `batch` of equal
// length, or of variable length with offsets. Query head n reads kv head n / (N/G) (GQA).
struct AttentionShape {
  std::int64_t batch = 1;       // equal sequences when there are no offsets
  Tensor q_offsets, k_offsets;  // i32 [documents+1], both or neither: row where each document begins; ends with Tq, Tk
  Mask mask = Mask::causal;     // causal aligns the last query with the last key when lengths differ
  // i32 [Tq], [Tk], both or neither, causal only: positions of rows in their sequences, ascending in each (zigzag split
  // of context parallelism). A query sees keys up to its own position, with a window none that is `window` or more
  // before it. None: the last query is at the position of the last key, and neighbours are one apart.
  Tensor q_positions, k_positions;
  // Sliding window: a query sees at most this many keys, its own included; 0: no limit; causal only.
  std::int64_t window = 0;
  float scale = 0;  // factor of q.k; must be given
  // Above 0: the head size of v where it is smaller than that of k (MLA). Channels from there on are zeros in v and in
  // the gradient of out; out and dv become zeros there or stay as they are. A backend may skip these channels.
  std::int64_t values = 0;
  std::int64_t first_head = 0;  // global index of the first query head, a key of dropout
  float dropout = 0;            // rate for the probabilities; the counter RNG takes key, q_rows, k_rows, head
  RngKey key;
  Tensor q_rows, k_rows;  // i64 [Tq], [Tk]: global row ids; needed by dropout only
  std::int64_t value_channels(std::int64_t head_size) const { return values > 0 ? values : head_size; }
};

// Flash attention: out = softmax(scale q k^T, masked) v, in memory linear in the sequence length. A query that sees no
// key gives zeros and lse = -inf.
struct AttentionArgs {
  Tensor q;     // [Tq,N,D], rows may be strided (packed [Q | K | V] rows)
  Tensor k, v;  // [Tk,G,D], rows may be strided
  Tensor out;   // [Tq,N,D], rows may be strided
  Tensor lse;   // f32 [N,Tq]: log-sum-exp of the scaled scores
  AttentionShape shape;
  void check() const;

  static constexpr OpKind op_kind = OpKind::attention;
  // What mask and window let through, of packed documents as of one.
  double flops() const;
  bool has_shape_of(const AttentionArgs& other) const;
};

// The backward uses the given lse instead of one of its own, so that in ring attention, where the keys of one call are
// a part of all keys, the gradients of all parts add up.
struct AttentionBackArgs {
  Tensor q, k, v, out, dout;  // shapes as in AttentionArgs; dout has that of out
  Tensor lse;                 // f32 [N,Tq]
  Tensor dq, dk, dv;          // overwritten; shapes of q, k, v, rows may be strided
  AttentionShape shape;
  void check() const;

  static constexpr OpKind op_kind = OpKind::attention;
  double flops() const;  // two forwards, whatever a kernel computes again
  bool has_shape_of(const AttentionBackArgs& other) const;
};

// One step of ring attention: merges (out, lse) of attention to some keys with (part, part_lse) of attention to others
// into those of all keys. Where a query sees no key of one of them, its lse is -inf and the merge is exact.
struct MergeAttentionArgs {
  Tensor part;      // [T,N,D], rows may be strided
  Tensor part_lse;  // f32 [N,T], rows may be strided
  Tensor out;       // f32 [T,N,D], in place; rows may be strided
  Tensor lse;       // f32 [N,T], in place; rows may be strided
  void check() const;
};

}  // namespace tera
