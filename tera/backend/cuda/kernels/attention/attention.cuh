#pragma once
// Flash attention kernels of our own: every shape of the contract, for the calls that cuDNN does not support. Also the
// tables that cuDNN needs for packed documents (variable-length sequences).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels {

// Rows of all heads: element (row, head, d) is at data[row * stride + head * D + d].
struct AttentionRows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

struct AttentionParams {
  Scalar scalar = Scalar::f32;
  bool exact = false;    // multiply in fp32 what tensor cores would multiply in 16 bits
  AttentionRows q, out;  // [Tq,N,D]
  AttentionRows k, v;    // [Tk,G,D]
  float* lse = nullptr;  // [N,Tq]
  std::int64_t q_rows = 0, k_rows = 0;
  int heads = 0, kv_heads = 0, head_size = 0;
  int sequences = 1;                                     // number of sequences of equal length, or of documents
  const int *q_offsets = nullptr, *k_offsets = nullptr;  // [sequences+1] of documents, on the device; else null
  bool causal = true;
  std::int64_t window = 0;  // 0: none
  float scale = 0;
  float dropout = 0;
  std::uint64_t key = 0;
  std::int64_t first_head = 0;
  const int *q_positions = nullptr, *k_positions = nullptr;  // [Tq], [Tk], where rows are not consecutive positions
  const std::int64_t *q_ids = nullptr, *k_ids = nullptr;     // [Tq], [Tk]: global row numbers, for dropout
};

struct AttentionBackParams : AttentionParams {
  AttentionRows dout, dq, dk, dv;
  float* delta = nullptr;  // workspace, [N,Tq]
};

cudaError_t launch_attention(const AttentionParams& params, cudaStream_t stream);
cudaError_t launch_attention_back(const AttentionBackParams& params, cudaStream_t stream);

// Whether a call runs on tensor cores (mma.sync): 16-bit types, aligned, heads of up to 128 channels.
bool mma_supports(const AttentionParams& params);
bool mma_supports(const AttentionBackParams& params);
cudaError_t launch_attention_mma(const AttentionParams& params, cudaStream_t stream);
cudaError_t launch_attention_back_mma(const AttentionBackParams& params,
                                      cudaStream_t stream);  // delta has been computed

// Merges the partial results of attention to two sets of keys (a step of ring attention): out and lse become those of
// both.
struct MergeAttentionParams {
  Scalar scalar = Scalar::f32;  // dtype of the part
  AttentionRows part, out;      // [rows,heads,D]; out is f32
  const float* part_lse = nullptr;
  float* lse = nullptr;  // [heads,rows], as part_lse
  std::int64_t part_lse_stride = 0, lse_stride = 0;
  std::int64_t rows = 0;
  int heads = 0, head_size = 0;
};
cudaError_t launch_merge_attention(const MergeAttentionParams& params, cudaStream_t stream);

// to[i][j][k] = from[i][j][k]; each has strides of its own.
struct PermuteParams {
  const float* from = nullptr;
  float* to = nullptr;
  std::int64_t sizes[3] = {}, from_strides[3] = {}, to_strides[3] = {};
};
cudaError_t launch_permute(const PermuteParams& params, cudaStream_t stream);

// begins[i][j] = offsets[j] * strides[i]; lengths[j] = offsets[j+1] - offsets[j].
struct DocumentTableParams {
  static constexpr int max_operands = 9;
  const int* offsets = nullptr;  // [documents+1]
  int documents = 0, operands = 0;
  std::int64_t strides[max_operands] = {};
  std::int64_t* begins = nullptr;  // [operands][documents+1]
  int* lengths = nullptr;          // [documents]
};
cudaError_t launch_document_tables(const DocumentTableParams& params, cudaStream_t stream);

}  // namespace tera::cuda::kernels
