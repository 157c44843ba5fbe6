#include "tera/bench/bench_cases.h"
#include "tera/ops/gemm.h"
#include "tera/ops/grouped_gemm.h"

namespace tera {
namespace {

// One grouped GEMM of all experts, in its forward shapes; the cases of its backward use the same letters.
struct ExpertGemm {
  std::string name;         // "up, mixtral"
  std::int64_t R, G, N, K;  // out [R,N] = rows [R,K] x weights [G,N,K]
  DType dtype = DType::f32;
};

using Cases = std::vector<BenchCase>;

// The forward, or the input gradient: drows [R,K] = dout [R,N] x weights.
void add_rows(Cases& cases, const ExpertGemm& p, bool forward) {
  const Shape shape_of = forward ? shape(p.R, p.N, p.K) : shape(p.R, p.K, p.N);
  cases.push_back({"grouped_gemm " + std::string(forward ? "" : "dx of ") + p.name, to_string(shape_of), p.dtype,
                   [p, forward](BenchTensors& tensors) -> BenchCall {
                     const GroupedGemmArgs args{.a = tensors.normal(shape(p.R, forward ? p.K : p.N), p.dtype),
                                                .b = tensors.normal(shape(p.G, p.N, p.K), p.dtype),
                                                .out = tensors.filled(shape(p.R, forward ? p.N : p.K), p.dtype, 0),
                                                .offsets = tensors.offsets(p.R, p.G),
                                                .trans_b = forward};
                     return {[args](Ops& ops) { ops(args); }, {args.a, args.b}, {args.out}};
                   }});
}

// The weight gradient, accumulated as in all microbatches of a step but the first, or written as in the first.
void add_weights(Cases& cases, const ExpertGemm& p, bool accumulate) {
  cases.push_back({"grouped_weight_gradient " + std::string(accumulate ? "" : "written, ") + p.name,
                   to_string(shape(p.N, p.K, p.R)), p.dtype, [p, accumulate](BenchTensors& tensors) -> BenchCall {
                     const GroupedWeightGradientArgs args{.a = tensors.normal(shape(p.R, p.N), p.dtype),
                                                          .b = tensors.normal(shape(p.R, p.K), p.dtype),
                                                          .out = tensors.filled(shape(p.G, p.N, p.K), DType::f32, 0),
                                                          .offsets = tensors.offsets(p.R, p.G),
                                                          .accumulate = accumulate};
                     std::vector<Tensor> read{args.a, args.b};
                     if (accumulate) read.push_back(args.out);
                     return {[args](Ops& ops) { ops(args); }, read, {args.out}};
                   }});
}

// A dense GEMM of as many FLOPs, with one matrix for all rows, to show the cost of grouping.
void add_dense(Cases& cases, const ExpertGemm& p) {
  cases.push_back(
      {"gemm as grouped " + p.name, to_string(shape(p.R, p.N, p.K)), p.dtype, [p](BenchTensors& tensors) -> BenchCall {
         const GemmArgs args{.a = tensors.normal(shape(p.R, p.K), p.dtype),
                             .b = tensors.normal(shape(p.N, p.K), p.dtype),
                             .out = tensors.filled(shape(p.R, p.N), p.dtype, 0),
                             .trans_b = true};
         return {[args](Ops& ops) { ops(args); }, {args.a, args.b}, {args.out}};
       }});
}

}  // namespace

std::vector<BenchCase> bench_expert_cases(const std::vector<ExpertShapes>& models, DType dtype) {
  Cases cases;
  for (const ExpertShapes& m : models)
    for (const ExpertGemm& product : {ExpertGemm{"up, " + m.name, m.rows, m.experts, 2 * m.ffn, m.hidden, dtype},
                                      ExpertGemm{"down, " + m.name, m.rows, m.experts, m.hidden, m.ffn, dtype}}) {
      add_dense(cases, product);
      add_rows(cases, product, true);
      add_rows(cases, product, false);
      for (const bool accumulate : {true, false}) add_weights(cases, product, accumulate);
    }
  return cases;
}

}  // namespace tera
