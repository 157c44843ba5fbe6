#include "tera/backend/cuda/kernels/bias.cuh"

namespace tera::cuda::kernels {
namespace {

constexpr int threads = 256;

template <class Out, class Bias>
__global__ void add_bias(Out* out, const Bias* bias, std::int64_t columns, std::int64_t out_stride) {
  Out* row = out + static_cast<std::int64_t>(blockIdx.x) * out_stride;
  for (std::int64_t i = threadIdx.x; i < columns; i += threads)
    row[i] = from_float<Out>(to_float(row[i]) + to_float(bias[i]));
}

}  // namespace

cudaError_t launch_add_bias(const AddBias& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  with_type(args.out_type, [&](auto out) {
    with_type(args.bias_type, [&](auto bias) {
      using Out = decltype(out);
      using Bias = decltype(bias);
      add_bias<<<static_cast<unsigned>(args.rows), threads, 0, stream>>>(
          static_cast<Out*>(args.out), static_cast<const Bias*>(args.bias), args.columns, args.out_stride);
    });
  });
  return cudaGetLastError();
}

}  // namespace tera::cuda::kernels
