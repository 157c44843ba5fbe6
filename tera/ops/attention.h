#pragma once
#include "tera/base/kinds.h"
#include "tera/base/rng.h"
#include "tera/tensor/tensor.h"

namespace tera {

// What forward and backward share. Rows of q, k, v are tokens; sequences follow each other, either `batch` of equal
// length, or cut by offsets. Query head n reads kv head n / (N/G).
struct AttentionShape {
  std::int64_t batch = 1;       // equal sequences when there are no offsets
  Tensor q_offsets, k_offsets;  // i32 [documents+1], both or neither: row where each document begins; ends with Tq, Tk
  Mask mask = Mask::causal;     // causal aligns the last query with the last key when lengths differ
  // i32 [Tq], [Tk], both or neither, causal only: where rows stand in their sequences, ascending in each. A query sees
  // keys up to its own position, and with a window none that is as far before it. None: the last query stands at the
  // last key, and neighbours are one apart.
  Tensor q_positions, k_positions;
  std::int64_t window = 0;      // a query sees at most this many keys, its own included; 0: no limit; causal only
  float scale = 0;              // of q.k; must be given
  std::int64_t first_head = 0;  // number of the first query head in the whole model; keys dropout
  float dropout = 0;            // of the probabilities, from the counter RNG: key, q_rows, k_rows, head
  RngKey key;
  Tensor q_rows, k_rows;  // i64 [Tq], [Tk]: global row ids; needed by dropout only
};

// out = softmax(scale q k^T, masked) v, in memory linear in the sequence length. A query that sees no key gives zeros
// and lse = -inf.
struct AttentionArgs {
  Tensor q;     // [Tq,N,D], rows may be strided (packed [Q | K | V] rows)
  Tensor k, v;  // [Tk,G,D], rows may be strided
  Tensor out;   // [Tq,N,D], rows may be strided
  Tensor lse;   // f32 [N,Tq]: log of the sum of exp of the scaled scores
  AttentionShape shape;
  void check() const;
};

// Takes the lse it is given (not one it computes), so that partial results of split sequences merge exactly.
struct AttentionBackArgs {
  Tensor q, k, v, out, dout;  // as in forward; dout like out
  Tensor lse;                 // f32 [N,Tq]
  Tensor dq, dk, dv;          // overwritten; like q, k, v, rows may be strided
  AttentionShape shape;
  void check() const;
};

// out and lse of the keys of both: of attention to some keys, and of attention to others (part, part_lse). Exact where
// a query sees no key of one of them: -inf.
struct MergeAttentionArgs {
  Tensor part;      // [T,N,D], rows may be strided
  Tensor part_lse;  // f32 [N,T], rows may be strided
  Tensor out;       // f32 [T,N,D], in place; rows may be strided
  Tensor lse;       // f32 [N,T], in place; rows may be strided
  void check() const;
};

}  // namespace tera
