#pragma once
// Context-parallel attention of local queries to keys and values of other ranks (dist.cp_comm_type):
//
//   all_gather   every rank gathers all keys and values, in order, and its queries see those up to their own position
//   p2p          ring attention: while a rank attends to the keys and values of one rank, those of the next are in
//                flight. Partial outputs are merged by their log-sum-exp; in backward the gradients of keys and values
//                rotate too, one step behind, and return to their rank in the end
//
// The zigzag split (data/batching/context_split.h) gives each rank a piece of the front and its mirror image from the
// back. With 2 ranks; x: seen, %: up to the diagonal
//
//                keys of rank 0    of rank 1
//                   0     3         1     2
//   rank 0   0      %                                   local keys: the causal mask
//            3      x     %         x     x             of a later rank: the back half of the queries, all keys
//   rank 1   1      x               %
//            2      x               x     %             of an earlier rank: all queries, the front half of the keys
//
// So every ring step but the first is half a square without a mask. With packed documents, several sequences or a
// sliding window, masks compare the positions of rows instead.

#include "tera/nn/context_parallel.h"

namespace tera {

// AttentionArgs and AttentionBackArgs of local queries to the keys of all ranks; with one rank, or after a Ulysses
// all-to-all, plain calls of these. Of the shape, mask, window, scale, dropout and first head are used as given;
// offsets and row ids are replaced by those that the microbatch has of all rows.
void attend_over_ranks(Run& run, const ContextParallel& cp, const AttentionArgs& local);
void attend_back_over_ranks(Run& run, const ContextParallel& cp, const AttentionBackArgs& local);

}  // namespace tera
