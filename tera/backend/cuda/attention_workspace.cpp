#include "tera/backend/cuda/attention_workspace.h"

#include <algorithm>

#include "tera/backend/cuda/kernels/hopper/hopper_attention_workspace.h"
#include "tera/backend/cuda/workspace.h"
#include "tera/base/gpu_limits.h"

namespace tera::cuda {
namespace {

constexpr std::int64_t shortest_sequence = 64;
constexpr std::int64_t score_bytes = std::int64_t{1} << 30;  // for the scores of one call of cuDNN, if they can be cut
constexpr std::int64_t max_score_bytes = 4 * score_bytes;    // for those of one group of heads, which cannot
constexpr std::int64_t library_spare = std::int64_t{16} << 20;  // counters, tables, rounding up of sizes

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }
std::size_t part(std::int64_t bytes) { return static_cast<std::size_t>(round_up(bytes, 256)); }

// cuDNN moves 16 bytes at a time.
bool aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && tensor.stride[0] % 8 == 0;
}

template <class... Tensors>
std::string_view why_not(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensors&... others) {
  if (q.dtype != DType::bf16 && q.dtype != DType::f16) return "it takes bf16 and fp16 only";
  if (shape.dropout > 0) return "its dropout would draw other numbers (model.attention_dropout=0 has none)";
  if (shape.q_positions) return "queries do not stand side by side";
  if (q.dim(2) % 8 != 0 || q.dim(2) > max_gpu_head_size) return "it takes heads of 8, 16, ... 256 channels";
  const std::int64_t sequences = shape.q_offsets ? 1 : shape.batch;
  const std::int64_t queries = q.dim(0) / sequences, keys = k.dim(0) / sequences;
  if (std::min(queries, keys) < shortest_sequence) return "sequences are shorter than 64 tokens";
  // Only where lengths are equal can we be sure that every query of a document sees a key.
  if (shape.q_offsets ? shape.q_offsets.data != shape.k_offsets.data : shape.mask == Mask::causal && queries > keys)
    return "queries may see no key";
  if (!aligned(q) || !aligned(k) || !(aligned(others) && ...)) return "rows do not begin at multiples of 16 bytes";
  return {};
}

// The largest divisor of `number` that is at most `limit` (at least 1).
std::int64_t divisor_up_to(std::int64_t number, std::int64_t limit) {
  std::int64_t divisor = std::clamp<std::int64_t>(limit, 1, number);
  while (number % divisor != 0) --divisor;
  return divisor;
}

std::int64_t scores_of_one_head(const AttentionBackArgs& args) {
  const std::int64_t queries = args.q.dim(0) / args.shape.batch, keys = args.k.dim(0) / args.shape.batch;
  return round_up(queries, 64) * round_up(keys, 128) * 2;
}

std::int64_t table_bytes(const AttentionShape& shape) {
  if (!shape.q_offsets) return 0;
  const std::int64_t documents = sequence_count(shape);
  return cudnn_operands * (documents + 1) * 8 + documents * 4;
}

std::int64_t lse_bytes(const Tensor& q) { return q.dim(0) * q.dim(1) * 4; }

// One call: the sums of dout * out; the scores, or dq in fp32; with groups, dk and dv of every query head.
std::int64_t library_bytes(const AttentionBackArgs& args, bool deterministic) {
  const std::int64_t D = args.q.dim(2), group = args.q.dim(1) / args.k.dim(1);
  const AttentionSlices slices = attention_back_slices(args, deterministic);
  const std::int64_t heads = slices.sequences * slices.kv_heads * group;  // query heads of one call, all its sequences
  const std::int64_t queries = args.q.dim(0) / args.shape.batch, keys = args.k.dim(0) / args.shape.batch;
  const std::int64_t sums = heads * queries * 4;
  const std::int64_t intermediates =
      deterministic ? heads * scores_of_one_head(args) : heads * round_up(queries, 128) * D * 4;
  const std::int64_t every_head = group > 1 ? 2 * heads * round_up(keys, 128) * D * 2 : 0;
  return sums + intermediates + every_head + library_spare;
}

// The workspace for packed documents, where cudnn-frontend uses our strides between rows.
std::int64_t document_library_bytes(const AttentionBackArgs& args) {
  const std::int64_t group = args.q.dim(1) / args.k.dim(1);
  const std::int64_t every_head = group > 1 ? args.k.dim(0) * (args.dk.stride[0] + args.dv.stride[0]) * group * 4 : 0;
  return lse_bytes(args.q) + args.q.dim(0) * args.dq.stride[0] * 4 + every_head + library_spare;
}

}  // namespace

std::int64_t sequence_count(const AttentionShape& shape) {
  return shape.q_offsets ? shape.q_offsets.dim(0) - 1 : shape.batch;
}

std::string_view why_not_cudnn(const AttentionArgs& args) {
  return why_not(args.shape, args.q, args.k, args.v, args.out);
}

std::string_view why_not_cudnn(const AttentionBackArgs& args, bool deterministic) {
  const std::string_view why =
      why_not(args.shape, args.q, args.k, args.v, args.out, args.dout, args.dq, args.dk, args.dv);
  if (!why.empty() || !deterministic) return why;
  // The scores of documents would be kept as if each were as long as all of them; those of long sequences would take
  // more memory than everything else.
  if (args.shape.q_offsets)
    return "its backward of packed documents does not repeat (train.deterministic=false allows it)";
  const std::int64_t group = args.q.dim(1) / args.k.dim(1);
  if (group * scores_of_one_head(args) > max_score_bytes)
    return "the scores of a group of heads would take more than 4 GiB (not with train.deterministic=false)";
  return {};
}

bool hopper_supports(const AttentionBackArgs& args) {
  const AttentionShape& shape = args.shape;
  if (args.q.dtype != DType::bf16 && args.q.dtype != DType::f16) return false;
  if (args.q.dim(2) != 64 && args.q.dim(2) != 128) return false;
  if (shape.mask != Mask::causal || shape.window > 0 || shape.dropout > 0 || shape.q_offsets || shape.q_positions)
    return false;
  if (shape.value_channels(args.q.dim(2)) != args.q.dim(2)) return false;  // cuDNN skips the padding channels
  if (args.q.dim(0) != args.k.dim(0) || args.q.dim(0) < shape.batch) return false;
  for (const Tensor& tensor : {args.q, args.k, args.v, args.out, args.dout, args.dq, args.dk, args.dv})
    if (!aligned(tensor)) return false;
  return true;
}

kernels::HopperAttentionSizes hopper_sizes(const AttentionBackArgs& args) {
  return {.sequences = args.shape.batch,
          .rows = args.q.dim(0) / args.shape.batch,
          .heads = args.q.dim(1),
          .kv_heads = args.k.dim(1),
          .head_size = args.q.dim(2)};
}

// The number of units of work, each of which keeps a multiprocessor busy, from which on our kernels are faster than
// cuDNN: measured on an H200 (bench/hopper_bounds), and fixed, so that the choice, and with it the bits, do not depend
// on the GPU's size. Sequences shorter than a tile would be padded.
bool hopper_is_profitable(const AttentionBackArgs& args) {
  if (!hopper_supports(args)) return false;
  const kernels::HopperAttentionSizes sizes = hopper_sizes(args);
  const std::int64_t min_units = sizes.head_size == 64 ? 16 : sizes.rows >= 1024 ? 64 : 96;
  return sizes.rows >= kernels::hopper_key_rows && sizes.units() >= min_units;
}

std::size_t hopper_attention_back_bytes(const AttentionBackArgs& args) {
  return part(kernels::hopper_attention_space(hopper_sizes(args)).bytes);
}

AttentionSlices attention_back_slices(const AttentionBackArgs& args, bool deterministic) {
  const std::int64_t kv_heads = args.k.dim(1), group = args.q.dim(1) / kv_heads;
  if (!deterministic || args.shape.q_offsets) return {args.shape.batch, kv_heads};
  const std::int64_t groups = score_bytes / (group * scores_of_one_head(args));
  if (groups < kv_heads) return {1, divisor_up_to(kv_heads, groups)};
  return {divisor_up_to(args.shape.batch, groups / kv_heads), kv_heads};
}

CudnnLayout cudnn_layout(const AttentionArgs& args) {
  // Without documents cuDNN writes lse in our order.
  return {.lse = args.shape.q_offsets ? part(lse_bytes(args.q)) : 0,
          .tables = part(table_bytes(args.shape)),
          .library = static_cast<std::size_t>(library_spare)};
}

CudnnLayout cudnn_layout(const AttentionBackArgs& args, bool deterministic) {
  const bool documents = static_cast<bool>(args.shape.q_offsets);
  return {.lse = documents || args.shape.batch > 1 ? part(lse_bytes(args.q)) : 0,
          .tables = part(table_bytes(args.shape)),
          .library = part(documents ? document_library_bytes(args) : library_bytes(args, deterministic))};
}

std::size_t delta_workspace_bytes(const AttentionBackArgs& args) { return part(lse_bytes(args.q)); }

std::size_t CudaWorkspaceRules::workspace(const AttentionArgs& args) const {
  return cudnn_supports(args) ? cudnn_layout(args).total() : 0;
}

std::size_t CudaWorkspaceRules::workspace(const AttentionBackArgs& args) const {
  const std::size_t library = cudnn_supports(args, deterministic_) ? cudnn_layout(args, deterministic_).total() : 0;
  const std::size_t hopper = hopper_is_profitable(args) ? hopper_attention_back_bytes(args) : 0;
  return std::max({library, hopper, delta_workspace_bytes(args)});
}

}  // namespace tera::cuda
