#pragma once
// Attention of own queries to keys and values that other ranks have (dist.cp_comm_type):
//
//   all_gather   every rank gets all keys and values, in order, and its queries see those up to their own position
//   p2p          they go round in a ring: while a rank attends to those of one rank, the next ones are on their way.
//                What comes of each is merged, by the log of the sum of exponentials; in backward gradients of keys and
//                values go round with them, and come home in the end
//
// With 2 ranks, each with a piece of the front and its mirror image of the back (data/context_split.h); x: seen, %: up
// to the diagonal
//
//                keys of rank 0    of rank 1
//                   0     3         1     2
//   rank 0   0      %                                   own keys: as ever
//            3      x     %         x     x             of a rank behind: the back half of the queries, all keys
//   rank 1   1      x               %
//            2      x               x     %             of a rank before: all queries, the front half of the keys
//
// So every step but the first is half a square without a mask. Where documents are packed, sequences are several or
// there is a window, rows are told apart by their positions.

#include "tera/nn/context_parallel.h"

namespace tera {

// As Ops::attention and attention_back of own rows; where one rank has all, or heads have travelled, just these. The
// shape's mask, window, scale, dropout and first head count, and offsets and row ids are those that the microbatch has
// of all rows.
void attend_over_ranks(Run& run, const ContextParallel& cp, const AttentionArgs& own);
void attend_back_over_ranks(Run& run, const ContextParallel& cp, const AttentionBackArgs& own);

}  // namespace tera
