#pragma once
// Who computes a call of attention, cuDNN or our own kernels, and how much workspace that takes. Pure C++: any machine
// can plan for a GPU. Backward is first offered to our kernels for Hopper, which are faster, then to cuDNN.

#include <string_view>

#include "tera/ops/attention.h"

namespace tera::cuda {

// Why cuDNN does not support a call; empty: it does. It can still refuse when its graph is built; our own kernels then
// compute the call.
std::string_view why_not_cudnn(const AttentionArgs& args);
std::string_view why_not_cudnn(const AttentionBackArgs& args, bool deterministic);
inline bool cudnn_supports(const AttentionArgs& args) { return why_not_cudnn(args).empty(); }
inline bool cudnn_supports(const AttentionBackArgs& args, bool deterministic) {
  return why_not_cudnn(args, deterministic).empty();
}

// Whether the kernels for Hopper (kernels/hopper/hopper_attention_back.cuh) can compute a call; whether the call is
// large enough that they are faster than cuDNN; and their workspace.
bool hopper_supports(const AttentionBackArgs& args);
bool hopper_is_profitable(const AttentionBackArgs& args);
std::size_t hopper_attention_back_bytes(const AttentionBackArgs& args);

// Sequences of equal length, or documents.
std::int64_t sequence_count(const AttentionShape& shape);

// cuDNN's deterministic backward writes all scores to memory, two bytes each, before it sums dq up. So that this stays
// linear in the batch, one call of ours becomes several of cuDNN's: runs of sequences and of kv heads.
struct AttentionSlices {
  std::int64_t sequences = 0, kv_heads = 0;  // in one call of cuDNN; they divide the batch and G
};
AttentionSlices attention_back_slices(const AttentionBackArgs& args, bool deterministic);

// The workspace of a call that cuDNN computes: bytes of its parts, in this order. Each begins at a multiple of 256.
struct CudnnLayout {
  std::size_t lse = 0;  // f32 in cuDNN's order: [B,N,S], or [Tq,N] for documents; 0: the caller's lse is in that order
  std::size_t tables = 0;   // packed documents: where each begins in each operand, and its length
  std::size_t library = 0;  // cuDNN's own workspace; a bound, checked against its plan
  std::size_t total() const { return lse + tables + library; }
};
CudnnLayout cudnn_layout(const AttentionArgs& args);
CudnnLayout cudnn_layout(const AttentionBackArgs& args, bool deterministic);

// Tables of documents: for every operand i64 [documents+1], then i32 [documents].
inline constexpr std::int64_t cudnn_operands = 9;  // q, k, v, out, lse, dout, dq, dk, dv

// The workspace of our own backward (delta): the dot product of each row of out with its gradient, f32 [N,Tq].
std::size_t delta_workspace_bytes(const AttentionBackArgs& args);

}  // namespace tera::cuda
