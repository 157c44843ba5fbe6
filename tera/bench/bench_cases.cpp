#include "tera/bench/bench_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>

#include "tera/ops/attention.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/embedding.h"
#include "tera/ops/gemm.h"
#include "tera/ops/gemm_activation.h"
#include "tera/ops/loss.h"
#include "tera/ops/norm.h"
#include "tera/ops/optim.h"
#include "tera/ops/pointwise.h"
#include "tera/ops/random.h"
#include "tera/ops/rope.h"

namespace tera {

Tensor BenchTensors::normal(const Shape& shape, DType dtype) {
  const Tensor tensor = arena_.take(shape, dtype, "bench");
  if (ops_) (*ops_)(NormalArgs{.out = tensor, .key = {++taken_}});
  return tensor;
}

Tensor BenchTensors::filled(const Shape& shape, DType dtype, double value) {
  const Tensor tensor = arena_.take(shape, dtype, "bench");
  if (ops_) (*ops_)(FillArgs{.out = tensor, .value = value});
  return tensor;
}

Tensor BenchTensors::integers(const Shape& shape, DType dtype, std::int64_t below) {
  const Tensor tensor = arena_.take(shape, dtype, "bench");
  if (!ops_) return tensor;
  const RngKey key{++taken_};
  const auto draw = [&]<class T>(T) {
    std::vector<T> values(static_cast<std::size_t>(count(shape)));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<T>(philox(key, i, 0)[0] % static_cast<std::uint64_t>(below));
    ops_->from_host(std::as_bytes(std::span(values)), tensor);
  };
  if (dtype == DType::i64)
    draw(std::int64_t{});
  else
    draw(std::int32_t{});
  return tensor;
}

Tensor BenchTensors::counted(std::int64_t rows, std::int64_t period) {
  const Tensor tensor = arena_.take(shape(rows), DType::i32, "bench");
  if (!ops_) return tensor;
  std::vector<std::int32_t> values(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % period);
  ops_->from_host(std::as_bytes(std::span(values)), tensor);
  return tensor;
}

Tensor BenchTensors::offsets(std::int64_t rows, std::int64_t groups) {
  const Tensor tensor = arena_.take(shape(groups + 1), DType::i32, "bench");
  if (!ops_) return tensor;
  const RngKey key{++taken_};
  std::vector<double> ends(static_cast<std::size_t>(groups) + 1);
  for (std::size_t g = 1; g < ends.size(); ++g)  // the largest has twice the rows of the smallest
    ends[g] = ends[g - 1] + 1 + static_cast<double>(philox(key, g, 0)[0]) / 4294967296.0;
  std::vector<std::int32_t> values(ends.size());
  for (std::size_t g = 0; g < ends.size(); ++g)
    values[g] = static_cast<std::int32_t>(ends[g] / ends.back() * static_cast<double>(rows));
  ops_->from_host(std::as_bytes(std::span(values)), tensor);
  return tensor;
}

namespace {

// Small enough to be kept by value in every case.
struct Sizes : BenchShapes {
  DType dtype = DType::f32;
  std::int64_t logits_rows = 0;

  // The projections to queries, keys and values, side by side.
  std::int64_t qkv_heads() const { return heads + 2 * kv_heads; }
  Shape qkv() const { return shape(tokens, qkv_heads(), head_size); }
  Shape rows() const { return shape(tokens, hidden); }
};

using Cases = std::vector<BenchCase>;
using Make = std::function<BenchCall(BenchTensors&)>;

void add(Cases& cases, const Sizes& s, std::string op, const Shape& shape, Make make) {
  cases.push_back({std::move(op), to_string(shape), s.dtype, std::move(make)});
}

struct GemmForm {
  std::int64_t m, n, k;
  bool trans_a = false, trans_b = false, bias = false, residual = false, accumulate = false;
};

// The first copy is the limit that memory-bound ops are measured against.
void add_copies(Cases& cases, const Sizes& s) {
  const Shape all = shape(s.tokens, s.ffn);
  const auto copy_to = [s, all](DType to) {
    return [s, all, to](BenchTensors& tensors) -> BenchCall {
      const Tensor src = tensors.normal(all, s.dtype), dst = tensors.filled(all, to, 0);
      return {[=](Ops& ops) { ops(CopyArgs{.src = src, .dst = dst}); }, {src}, {dst}};
    };
  };
  add(cases, s, "copy", all, copy_to(s.dtype));
  add(cases, s, s.dtype == DType::f32 ? "copy, to bf16" : "copy, to f32", all,
      copy_to(s.dtype == DType::f32 ? DType::bf16 : DType::f32));
  add(cases, s, "fill", all, [s, all](BenchTensors& tensors) -> BenchCall {
    const Tensor out = tensors.filled(all, s.dtype, 0);
    return {[=](Ops& ops) { ops(FillArgs{.out = out, .value = 1}); }, {}, {out}};
  });
}

void add_gemm(Cases& cases, const Sizes& s, const char* name, const GemmForm& form) {
  add(cases, s, name, shape(form.m, form.n, form.k), [s, form](BenchTensors& tensors) -> BenchCall {
    const Shape a = form.trans_a ? shape(form.k, form.m) : shape(form.m, form.k);
    const Shape b = form.trans_b ? shape(form.n, form.k) : shape(form.k, form.n);
    const Shape out = shape(form.m, form.n);
    const GemmArgs args{.a = tensors.normal(a, s.dtype),
                        .b = tensors.normal(b, s.dtype),
                        .out = tensors.filled(out, form.accumulate ? DType::f32 : s.dtype, 0),
                        .bias = form.bias ? tensors.normal(shape(form.n), s.dtype) : Tensor{},
                        .residual = form.residual ? tensors.normal(out, s.dtype) : Tensor{},
                        .trans_a = form.trans_a,
                        .trans_b = form.trans_b,
                        .accumulate = form.accumulate};
    return {[args](Ops& ops) { ops(args); }, {args.a, args.b}, {args.out}};
  });
}

// GEMMs of a gated MLP with the activation fused: up with SwiGLU, dx of down with its backward.
void add_gated_gemms(Cases& cases, const Sizes& s) {
  const std::int64_t T = s.tokens, H = s.hidden, F = s.ffn;
  add(cases, s, "gemm gate and up, swiglu", shape(T, 2 * F, H), [=](BenchTensors& tensors) -> BenchCall {
    const Tensor x = tensors.filled(shape(T, 2 * F), s.dtype, 0);
    const GemmActivationArgs args{.gemm = {.a = tensors.normal(shape(T, H), s.dtype),
                                           .b = tensors.normal(shape(2 * F, H), s.dtype),
                                           .out = x,
                                           .trans_b = true},
                                  .activation = {.x = x, .y = tensors.filled(shape(T, F), s.dtype, 0)}};
    return {[args](Ops& ops) { ops(args); }, {args.gemm.a, args.gemm.b}, {x, args.activation.y}};
  });
  add(cases, s, "gemm dx of down, swiglu_back", shape(T, F, H), [=](BenchTensors& tensors) -> BenchCall {
    const Tensor dact = tensors.filled(shape(T, F), s.dtype, 0);
    const GemmActivationBackArgs args{
        .gemm = {.a = tensors.normal(shape(T, H), s.dtype), .b = tensors.normal(shape(H, F), s.dtype), .out = dact},
        .activation = {.dy = dact,
                       .x = tensors.normal(shape(T, 2 * F), s.dtype),
                       .dx = tensors.filled(shape(T, 2 * F), s.dtype, 0)}};
    return {[args](Ops& ops) { ops(args); }, {args.gemm.a, args.gemm.b, args.activation.x}, {args.activation.dx}};
  });
}

void add_gemms(Cases& cases, const Sizes& s) {
  const std::int64_t T = s.tokens, H = s.hidden, F = s.ffn, V = s.vocab, QKV = s.qkv_heads() * s.head_size;
  const std::int64_t O = s.heads * s.head_size, L = s.logits_rows;
  add_gemm(cases, s, "gemm qkv", {.m = T, .n = QKV, .k = H, .trans_b = true});
  add_gemm(cases, s, "gemm qkv + bias", {.m = T, .n = QKV, .k = H, .trans_b = true, .bias = true});
  add_gemm(cases, s, "gemm out + residual", {.m = T, .n = H, .k = O, .trans_b = true, .residual = true});
  add_gemm(cases, s, "gemm gate and up", {.m = T, .n = 2 * F, .k = H, .trans_b = true});
  add_gemm(cases, s, "gemm down + residual", {.m = T, .n = H, .k = F, .trans_b = true, .residual = true});
  add_gemm(cases, s, "gemm dx of gate and up", {.m = T, .n = H, .k = 2 * F});
  add_gemm(cases, s, "gemm dx of down", {.m = T, .n = F, .k = H});
  add_gemm(cases, s, "gemm dw of gate and up", {.m = 2 * F, .n = H, .k = T, .trans_a = true, .accumulate = true});
  add_gemm(cases, s, "gemm dw of down", {.m = H, .n = F, .k = T, .trans_a = true, .accumulate = true});
  add_gated_gemms(cases, s);
  add_gemm(cases, s, "gemm logits", {.m = L, .n = V, .k = H, .trans_b = true});
  add_gemm(cases, s, "gemm dx of logits", {.m = L, .n = H, .k = V});
  add_gemm(cases, s, "gemm dw of logits", {.m = V, .n = H, .k = L, .trans_a = true, .accumulate = true});
}

void add_attention(Cases& cases, const Sizes& s) {
  const Shape heads = shape(s.tokens, s.heads, s.head_size);
  const AttentionShape causal{.batch = s.tokens / s.sequence,
                              .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_size)))};
  // q, k and v are slices of the fused QKV projection's rows.
  const auto parts = [s](const Tensor& rows) {
    const std::int64_t N = s.heads, G = s.kv_heads;
    return std::array{rows.slice(1, 0, N), rows.slice(1, N, N + G), rows.slice(1, N + G, N + 2 * G)};
  };
  const auto forward = [=](BenchTensors& tensors) -> AttentionArgs {
    const auto [q, k, v] = parts(tensors.normal(s.qkv(), s.dtype));
    return {.q = q,
            .k = k,
            .v = v,
            .out = tensors.filled(heads, s.dtype, 0),
            .lse = tensors.filled(shape(s.heads, s.tokens), DType::f32, 0),
            .shape = causal};
  };
  const std::string per = fmt::format(", {} per sequence", s.sequence);
  add(cases, s, "attention" + per, heads, [=](BenchTensors& tensors) -> BenchCall {
    const AttentionArgs args = forward(tensors);
    return {[args](Ops& ops) { ops(args); }, {args.q, args.k, args.v}, {args.out}};
  });
  add(cases, s, "attention_back" + per, heads, [=](BenchTensors& tensors) -> BenchCall {
    const AttentionArgs f = forward(tensors);
    const auto [dq, dk, dv] = parts(tensors.filled(s.qkv(), s.dtype, 0));
    // The log-sum-exp of scores around zero, so that probabilities add up to about one.
    const Tensor lse = tensors.filled(shape(s.heads, s.tokens), DType::f32, std::log(static_cast<double>(s.sequence)));
    const AttentionBackArgs args{
        f.q, f.k, f.v, tensors.normal(heads, s.dtype), tensors.normal(heads, s.dtype), lse, dq, dk, dv, causal};
    return {[args](Ops& ops) { ops(args); }, {args.q, args.k, args.v, args.out, args.dout}, {dq, dk, dv}};
  });
}

void add_norms(Cases& cases, const Sizes& s) {
  add(cases, s, "norm", s.rows(), [s](BenchTensors& tensors) -> BenchCall {
    const NormArgs args{.x = tensors.normal(s.rows(), s.dtype),
                        .weight = tensors.normal(shape(s.hidden), s.dtype),
                        .y = tensors.filled(s.rows(), s.dtype, 0),
                        .bias = {},
                        .mean = {},
                        .rstd = tensors.filled(shape(s.tokens), DType::f32, 1)};
    return {[args](Ops& ops) { ops(args); }, {args.x}, {args.y}};
  });
  add(cases, s, "norm_back + residual", s.rows(), [s](BenchTensors& tensors) -> BenchCall {
    const NormBackArgs args{.dy = tensors.normal(s.rows(), s.dtype),
                            .x = tensors.normal(s.rows(), s.dtype),
                            .weight = tensors.normal(shape(s.hidden), s.dtype),
                            .rstd = tensors.filled(shape(s.tokens), DType::f32, 1),
                            .mean = {},
                            .residual = tensors.normal(s.rows(), s.dtype),
                            .dx = tensors.filled(s.rows(), s.dtype, 0),
                            .dweight = tensors.filled(shape(s.hidden), DType::f32, 0),
                            .dbias = {}};
    return {[args](Ops& ops) { ops(args); }, {args.dy, args.x, args.residual}, {args.dx}};
  });
}

// RoPE in place on queries and keys, with angles of zero, so that repeating it changes no value.
void add_rope(Cases& cases, const Sizes& s) {
  const std::int64_t rotated_heads = s.heads + s.kv_heads;
  add(cases, s, "rope", shape(s.tokens, rotated_heads, s.head_size),
      [s, rotated_heads](BenchTensors& tensors) -> BenchCall {
        const Tensor all = tensors.normal(s.qkv(), s.dtype);
        const Shape table = shape(s.sequence, s.head_size / 2);
        const RopeArgs args{.x = all.slice(1, 0, rotated_heads),
                            .positions = tensors.counted(s.tokens, s.sequence),
                            .cos = tensors.filled(table, DType::f32, 1),
                            .sin = tensors.filled(table, DType::f32, 0)};
        return {[args](Ops& ops) { ops(args); }, {args.x}, {args.x}};
      });
}

void add_pointwise(Cases& cases, const Sizes& s) {
  const Shape in = shape(s.tokens, 2 * s.ffn), out = shape(s.tokens, s.ffn);
  add(cases, s, "swiglu", in, [s, in, out](BenchTensors& tensors) -> BenchCall {
    const ActivationArgs args{.x = tensors.normal(in, s.dtype), .y = tensors.filled(out, s.dtype, 0)};
    return {[args](Ops& ops) { ops(args); }, {args.x}, {args.y}};
  });
  add(cases, s, "swiglu_back", in, [s, in, out](BenchTensors& tensors) -> BenchCall {
    const ActivationBackArgs args{
        .dy = tensors.normal(out, s.dtype), .x = tensors.normal(in, s.dtype), .dx = tensors.filled(in, s.dtype, 0)};
    return {[args](Ops& ops) { ops(args); }, {args.dy, args.x}, {args.dx}};
  });
  add(cases, s, "dropout + residual", s.rows(), [s](BenchTensors& tensors) -> BenchCall {
    const DropoutArgs args{.x = tensors.normal(s.rows(), s.dtype),
                           .y = tensors.filled(s.rows(), s.dtype, 0),
                           .residual = tensors.normal(s.rows(), s.dtype),
                           .rows = tensors.integers(shape(s.tokens), DType::i64, s.tokens),
                           .rate = 0.1f,
                           .key = {1}};
    return {[args](Ops& ops) { ops(args); }, {args.x, args.residual}, {args.y}};
  });
}

void add_embedding(Cases& cases, const Sizes& s) {
  add(cases, s, "embedding", s.rows(), [s](BenchTensors& tensors) -> BenchCall {
    const EmbeddingArgs args{.tokens = tensors.integers(shape(s.tokens), DType::i32, s.vocab),
                             .table = tensors.normal(shape(s.vocab, s.hidden), s.dtype),
                             .y = tensors.filled(s.rows(), s.dtype, 0),
                             .positions = {},
                             .position_table = {}};
    return {[args](Ops& ops) { ops(args); },
            {args.y},
            {args.y}};  // reads as many bytes of the embedding table as it writes
  });
  add(cases, s, "embedding_back", s.rows(), [s](BenchTensors& tensors) -> BenchCall {
    const EmbeddingBackArgs args{.ids = tensors.integers(shape(s.tokens), DType::i32, s.vocab),
                                 .dy = tensors.normal(s.rows(), s.dtype),
                                 .dtable = tensors.filled(shape(s.vocab, s.hidden), DType::f32, 0)};
    const Tensor touched = args.dtable.rows(0, std::min(s.tokens, s.vocab));
    return {[args](Ops& ops) { ops(args); }, {args.dy, touched}, {touched}};
  });
}

void add_loss(Cases& cases, const Sizes& s) {
  const Shape logits = shape(s.logits_rows, s.vocab);
  add(cases, s, "cross_entropy", logits, [s, logits](BenchTensors& tensors) -> BenchCall {
    const CrossEntropyArgs args{.logits = tensors.normal(logits, s.dtype),
                                .targets = tensors.integers(shape(s.logits_rows), DType::i32, s.vocab),
                                .token_loss = tensors.filled(shape(s.logits_rows), DType::f32, 0),
                                .scale = tensors.filled(shape(1), DType::f32, 1),
                                .vocab = s.vocab};
    return {[args](Ops& ops) { ops(args); }, {args.logits}, {args.logits}};
  });
}

// Vocabulary-parallel cross-entropy: these logits are the first of eight vocabulary shards.
void add_vocab_parallel_loss(Cases& cases, const Sizes& s) {
  constexpr std::int64_t shards = 8;
  const Shape logits = shape(s.logits_rows, s.vocab);
  add(cases, s, "cross_entropy_stats", logits, [s, logits](BenchTensors& tensors) -> BenchCall {
    const CrossEntropyStatsArgs args{.logits = tensors.normal(logits, s.dtype),
                                     .targets = tensors.integers(shape(s.logits_rows), DType::i32, shards * s.vocab),
                                     .stats = tensors.filled(shape(s.logits_rows, 3), DType::f32, 0),
                                     .first = 0,
                                     .vocab = shards * s.vocab};
    return {[args](Ops& ops) { ops(args); }, {args.logits}, {}};
  });
  add(cases, s, "cross_entropy, 8 parts", logits, [s, logits](BenchTensors& tensors) -> BenchCall {
    const CrossEntropyArgs args{.logits = tensors.normal(logits, s.dtype),
                                .targets = tensors.integers(shape(s.logits_rows), DType::i32, shards * s.vocab),
                                .token_loss = tensors.filled(shape(s.logits_rows), DType::f32, 0),
                                .scale = tensors.filled(shape(1), DType::f32, 1),
                                .stats = tensors.filled(shape(shards, s.logits_rows, 3), DType::f32, 1),
                                .first = 0,
                                .vocab = shards * s.vocab};
    return {[args](Ops& ops) { ops(args); }, {args.logits}, {args.logits}};
  });
}

void add_sums(Cases& cases, const Sizes& s) {
  const Shape wide = shape(s.tokens, s.qkv_heads() * s.head_size);
  add(cases, s, "column_sum", wide, [s, wide](BenchTensors& tensors) -> BenchCall {
    const ColumnSumArgs args{.x = tensors.normal(wide, s.dtype), .out = tensors.filled(shape(wide[1]), DType::f32, 0)};
    return {[args](Ops& ops) { ops(args); }, {args.x}, {}};
  });
  add(cases, s, "sum_squares", shape(s.parameters), [s](BenchTensors& tensors) -> BenchCall {
    const SumSquaresArgs args{.x = tensors.normal(shape(s.parameters), DType::f32),
                              .out = tensors.filled(shape(1), DType::f64, 0)};
    return {[args](Ops& ops) { ops(args); }, {args.x}, {}};
  });
  cases.back().dtype = DType::f32;
  add(cases, s, "combine, 4 ranks", s.rows(), [s](BenchTensors& tensors) -> BenchCall {
    std::vector<Tensor> sources;
    for (int rank = 0; rank < 4; ++rank) sources.push_back(tensors.normal(s.rows(), s.dtype));
    const Tensor out = tensors.filled(s.rows(), s.dtype, 0);
    return {[sources, out](Ops& ops) { ops(CombineArgs{.sources = sources, .out = out}); }, sources, {out}};
  });
}

// Betas near 1 keep the values in an ordinary range over many steps.
void add_adam(Cases& cases, const Sizes& s, const char* name, DType moments) {
  const Shape all = shape(s.parameters);
  add(cases, s, name, all, [s, all, moments](BenchTensors& tensors) -> BenchCall {
    const AdamArgs args{.weight = tensors.normal(all, DType::f32),
                        .grad = tensors.normal(all, DType::f32),
                        .m = tensors.normal(all, moments),
                        .v = tensors.filled(all, moments, 1),
                        .copy = s.dtype == DType::f32 ? Tensor{} : tensors.filled(all, s.dtype, 0),
                        .scalars = tensors.filled(shape(static_cast<int>(StepScalar::count)), DType::f32, 1e-3),
                        .beta1 = 0.9999,
                        .beta2 = 0.9999};
    BenchCall call{
        [args](Ops& ops) { ops(args); }, {args.weight, args.grad, args.m, args.v}, {args.weight, args.m, args.v}};
    if (args.copy) call.written.push_back(args.copy);
    return call;
  });
}

void add_optimizers(Cases& cases, const Sizes& s) {
  const Shape all = shape(s.parameters);
  add_adam(cases, s, "adam", DType::f32);
  add_adam(cases, s, "adam, moments in bf16", DType::bf16);
  add(cases, s, "sgd", all, [s, all](BenchTensors& tensors) -> BenchCall {
    const SgdArgs args{.weight = tensors.normal(all, DType::f32),
                       .grad = tensors.normal(all, DType::f32),
                       .momentum_buffer = {},
                       .copy = s.dtype == DType::f32 ? Tensor{} : tensors.filled(all, s.dtype, 0),
                       .scalars = tensors.filled(shape(static_cast<int>(StepScalar::count)), DType::f32, 1e-3)};
    BenchCall call{[args](Ops& ops) { ops(args); }, {args.weight, args.grad}, {args.weight}};
    if (args.copy) call.written.push_back(args.copy);
    return call;
  });
}

}  // namespace

std::vector<BenchCase> bench_cases(const BenchShapes& shapes, DType dtype, std::int64_t logits_rows) {
  const Sizes s{shapes, dtype, logits_rows};
  Cases cases;
  for (const auto add_family : {add_copies, add_gemms, add_attention, add_norms, add_rope, add_pointwise, add_embedding,
                                add_loss, add_vocab_parallel_loss, add_sums, add_optimizers})
    add_family(cases, s);
  std::ranges::move(bench_expert_cases(shapes.experts, dtype), std::back_inserter(cases));
  return cases;
}

}  // namespace tera
