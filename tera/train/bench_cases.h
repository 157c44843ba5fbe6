#pragma once
// The calls that `tera bench ops` times: every kind of op at the shapes of one layer of a Llama.

#include <functional>
#include <string>
#include <vector>

#include "tera/ops/ops.h"
#include "tera/tensor/arena.h"

namespace tera {

// A layer of a model with experts: `rows` of them in all, two products of `ffn` channels between two of `hidden`.
struct ExpertShapes {
  std::string name;
  std::int64_t rows = 0, experts = 0, hidden = 0, ffn = 0;
};

// Zero, or empty: what fits the device.
struct BenchShapes {
  std::int64_t tokens = 0, sequence = 0;  // T, in sequences of S
  std::int64_t hidden = 0, ffn = 0, vocab = 0;
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;
  std::int64_t parameters = 0;  // that the optimizer updates at once
  std::vector<ExpertShapes> experts;
};

// Hands out tensors with values in them; while an arena measures, addresses alone.
class BenchTensors {
 public:
  explicit BenchTensors(Arena& arena) : arena_(arena) {}
  BenchTensors(Arena& arena, Ops& ops) : arena_(arena), ops_(&ops) {}

  Tensor normal(const Shape& shape, DType dtype);
  Tensor filled(const Shape& shape, DType dtype, double value);
  Tensor integers(const Shape& shape, DType dtype, std::int64_t below);  // i32 or i64, at random
  Tensor counted(std::int64_t rows, std::int64_t period);                // i32: 0 1 2 .. period-1 0 1 ..
  Tensor offsets(std::int64_t rows, std::int64_t groups);  // i32 [groups+1]: all rows, in groups of unlike sizes

 private:
  Arena& arena_;
  Ops* ops_ = nullptr;
  std::uint64_t taken_ = 0;
};

// One call with tensors of its own. What it must at least read and write is the traffic that is counted; something
// changed in place is in both lists.
struct BenchCall {
  std::function<void(Ops&)> call;
  std::vector<Tensor> read, written;
};

struct BenchCase {
  std::string op, shape;
  DType dtype;
  std::function<BenchCall(BenchTensors&)> make;
};

// Of weights and activations in `dtype`. logits_rows: of the logits that exist at a time.
std::vector<BenchCase> bench_cases(const BenchShapes& shapes, DType dtype, std::int64_t logits_rows);
// Their last part: products of experts, beside one of the same size with a single matrix.
std::vector<BenchCase> bench_expert_cases(const std::vector<ExpertShapes>& models, DType dtype);

}  // namespace tera
