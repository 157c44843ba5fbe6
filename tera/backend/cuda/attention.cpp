// Attention: cuDNN where it supports the call, our own flash attention kernels where it does not; on Hopper also where
// they are faster.

#include "tera/backend/cuda/kernels/attention/attention.cuh"
#include "tera/backend/cuda/attention_workspace.h"
#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/hopper/hopper_attention_back.cuh"
#include "tera/backend/cuda/libraries/cudnn_attention.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/base/gpu_limits.h"
#include "tera/ops/attention.h"

namespace tera::cuda {
namespace {

kernels::AttentionRows rows_of(const Tensor& tensor) { return {tensor.data, tensor.stride[0]}; }

template <class Args>
void fill_params(kernels::AttentionParams& params, const Args& args) {
  const AttentionShape& shape = args.shape;
  require_user(args.q.dim(2) <= max_gpu_head_size, "attention on a GPU takes heads of up to {} channels, not {}",
               max_gpu_head_size, args.q.dim(2));
  params.scalar = scalar_of(args.q.dtype);
  params.q = rows_of(args.q);
  params.k = rows_of(args.k);
  params.v = rows_of(args.v);
  params.out = rows_of(args.out);
  params.lse = args.lse.template as<float>();
  params.q_rows = args.q.dim(0);
  params.k_rows = args.k.dim(0);
  params.heads = static_cast<int>(args.q.dim(1));
  params.kv_heads = static_cast<int>(args.k.dim(1));
  params.head_size = static_cast<int>(args.q.dim(2));
  params.sequences = static_cast<int>(sequence_count(shape));
  params.causal = shape.mask == Mask::causal;
  params.window = shape.window;
  params.scale = shape.scale;
  params.dropout = shape.dropout;
  params.key = shape.key.seed;
  params.first_head = shape.first_head;
  if (shape.q_offsets) {
    params.q_offsets = shape.q_offsets.template as<std::int32_t>();
    params.k_offsets = shape.k_offsets.template as<std::int32_t>();
  }
  if (shape.q_positions) {
    params.q_positions = shape.q_positions.template as<std::int32_t>();
    params.k_positions = shape.k_positions.template as<std::int32_t>();
  }
  if (shape.dropout > 0) {
    params.q_ids = shape.q_rows.template as<std::int64_t>();
    params.k_ids = shape.k_rows.template as<std::int64_t>();
  }
}

kernels::AttentionBackParams back_params(const AttentionBackArgs& args, bool exact) {
  kernels::AttentionBackParams params;
  fill_params(params, args);
  params.exact = exact;
  params.dout = rows_of(args.dout);
  params.dq = rows_of(args.dq);
  params.dk = rows_of(args.dk);
  params.dv = rows_of(args.dv);
  return params;
}

// Tiles are as large as the shared memory of data-centre GPUs allows.
void check_launch(cudaError_t status, const char* what) {
  if (status == cudaErrorInvalidValue) {
    cudaGetLastError();
    fail_user("{}: this GPU has too little shared memory for our own kernels at this head size; cuDNN would take bf16",
              what);
  }
  check(status, what);
}

}  // namespace

template <>
void CudaOps::compute(const AttentionArgs& args) {
  if (attention_->supports(args)) return attention_->forward(args, workspace_);
  kernels::AttentionParams params;
  fill_params(params, args);
  params.exact = options_.exact_attention;
  check_launch(kernels::launch_attention(params, stream_), "attention");
}

template <>
void CudaOps::compute(const AttentionBackArgs& args) {
  if (use_hopper(args)) {
    void* const space = workspace(hopper_attention_back_bytes(args)).data();
    return check(kernels::launch_hopper_attention_back(back_params(args, false), space, stream_),
                 "attention_back on Hopper");
  }
  if (attention_->supports(args)) return attention_->backward(args, workspace_);
  kernels::AttentionBackParams params = back_params(args, options_.exact_attention);
  params.delta = reinterpret_cast<float*>(workspace(delta_workspace_bytes(args)).data());
  check_launch(kernels::launch_attention_back(params, stream_), "attention_back");
}

bool CudaOps::use_hopper(const AttentionBackArgs& args) const {
  if (options_.exact_attention || options_.hopper_kernels == HopperKernels::never) return false;
  const bool anywhere = options_.hopper_kernels == HopperKernels::wherever_supported;
  if (!(anywhere ? hopper_supports(args) : hopper_is_profitable(args))) return false;
  return kernels::hopper_attention_back_supports(back_params(args, false));
}

template <>
void CudaOps::compute(const MergeAttentionArgs& args) {
  const kernels::MergeAttentionParams params{.scalar = scalar_of(args.part.dtype),
                                             .part = rows_of(args.part),
                                             .out = rows_of(args.out),
                                             .part_lse = args.part_lse.as<float>(),
                                             .lse = args.lse.as<float>(),
                                             .part_lse_stride = args.part_lse.stride[0],
                                             .lse_stride = args.lse.stride[0],
                                             .rows = args.part.dim(0),
                                             .heads = static_cast<int>(args.part.dim(1)),
                                             .head_size = static_cast<int>(args.part.dim(2))};
  check(kernels::launch_merge_attention(params, stream_), "merge_attention");
}

}  // namespace tera::cuda
