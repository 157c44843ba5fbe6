// FLOPs of attention, and when two calls are of one shape for whoever chooses kernels.

#include <algorithm>

#include "tera/ops/attention.h"
#include "tera/ops/gemm_activation.h"

namespace tera {
namespace {

// The integral of min(x, window), the number of keys that a query at position x sees, from 0 to x.
double seen_before(double x, double window) {
  if (x <= 0) return 0;
  return x <= window ? x * x / 2 : window * window / 2 + window * (x - window);
}

// Unmasked pairs of query and key in all sequences, as an area: half a square for a causal one.
double attention_pairs(const AttentionShape& shape, const Tensor& q, const Tensor& k) {
  const auto batch = static_cast<double>(shape.batch);  // documents are not longer than sequences
  const double queries = static_cast<double>(q.dim(0)) / batch, keys = static_cast<double>(k.dim(0)) / batch;
  if (shape.mask == Mask::full) return batch * queries * keys;
  const double window = shape.window > 0 ? std::min(static_cast<double>(shape.window), keys) : keys;
  // The zigzag split of context parallelism: a rank's queries from front and back see as many keys as the average query
  // of the full sequence.
  if (shape.q_positions) return batch * seen_before(keys, window) * queries / keys;
  return batch * (seen_before(keys, window) - seen_before(keys - queries, window));
}

// Two matmuls, q k^T and p v, of two flops per pair and channel.
double attention_flops(const AttentionShape& shape, const Tensor& q, const Tensor& k) {
  const std::int64_t channels = q.dim(2) + shape.value_channels(q.dim(2));
  return 2 * attention_pairs(shape, q, k) * static_cast<double>(q.dim(1) * channels);
}

bool alike(const Tensor& a, const Tensor& b) {
  return static_cast<bool>(a) == static_cast<bool>(b) && a.dtype == b.dtype && a.shape == b.shape &&
         a.stride == b.stride;
}
bool alike(const AttentionShape& a, const AttentionShape& b) {
  return a.batch == b.batch && alike(a.q_offsets, b.q_offsets) && alike(a.q_positions, b.q_positions) &&
         a.mask == b.mask && a.window == b.window && a.dropout == b.dropout && a.values == b.values;
}
// Attention and its backward: all other arguments follow from these.
template <class Args>
bool alike_attention(const Args& a, const Args& b) {
  return alike(a.q, b.q) && alike(a.k, b.k) && alike(a.out, b.out) && alike(a.shape, b.shape);
}
template <class Args>
bool alike_gemm_activation(const Args& a, const Args& b) {
  return a.gemm.has_shape_of(b.gemm) && a.activation.kind == b.activation.kind &&
         alike(a.activation.weights, b.activation.weights);
}

}  // namespace

double AttentionArgs::flops() const { return attention_flops(shape, q, k); }
double AttentionBackArgs::flops() const { return 2 * attention_flops(shape, q, k); }

bool GemmArgs::has_shape_of(const GemmArgs& other) const {
  return alike(a, other.a) && alike(b, other.b) && alike(out, other.out) && alike(bias, other.bias) &&
         alike(residual, other.residual) && trans_a == other.trans_a && trans_b == other.trans_b &&
         accumulate == other.accumulate;
}
bool GemmActivationArgs::has_shape_of(const GemmActivationArgs& other) const {
  return alike_gemm_activation(*this, other);
}
bool GemmActivationBackArgs::has_shape_of(const GemmActivationBackArgs& other) const {
  return alike_gemm_activation(*this, other);
}
bool AttentionArgs::has_shape_of(const AttentionArgs& other) const { return alike_attention(*this, other); }
bool AttentionBackArgs::has_shape_of(const AttentionBackArgs& other) const { return alike_attention(*this, other); }

}  // namespace tera
