#pragma once
// The calls that `tera bench ops` times: every kind of op at the shapes of one layer of a Llama.

#include <functional>
#include <string>
#include <vector>

#include "tera/ops/ops.h"
#include "tera/tensor/arena.h"

namespace tera {

// The expert GEMMs of an MoE layer: `rows` over all experts, up and down between `hidden` and `ffn` channels.
struct ExpertShapes {
  std::string name;
  std::int64_t rows = 0, experts = 0, hidden = 0, ffn = 0;
};

// Sizes that are zero, or empty, get a default for the device.
struct BenchShapes {
  std::int64_t tokens = 0, sequence = 0;  // T, in sequences of S
  std::int64_t hidden = 0, ffn = 0, vocab = 0;
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;
  std::int64_t parameters = 0;  // that the optimizer updates at once
  std::vector<ExpertShapes> experts;
};

// Takes tensors from an arena and fills them; of a measuring arena only addresses, without values.
class BenchTensors {
 public:
  explicit BenchTensors(Arena& arena) : arena_(arena) {}
  BenchTensors(Arena& arena, Ops& ops) : arena_(arena), ops_(&ops) {}

  Tensor normal(const Shape& shape, DType dtype);
  Tensor filled(const Shape& shape, DType dtype, double value);
  Tensor integers(const Shape& shape, DType dtype, std::int64_t below);  // i32 or i64, at random
  Tensor counted(std::int64_t rows, std::int64_t period);                // i32: 0 1 2 .. period-1 0 1 ..
  Tensor offsets(std::int64_t rows, std::int64_t groups);  // i32 [groups+1]: all rows, in groups of unequal sizes

 private:
  Arena& arena_;
  Ops* ops_ = nullptr;
  std::uint64_t taken_ = 0;
};

// One call with tensors of its own. `read` and `written` are the minimum memory traffic, from which the bandwidth is
// computed; a tensor that is changed in place is in both lists.
struct BenchCall {
  std::function<void(Ops&)> call;
  std::vector<Tensor> read, written;
};

struct BenchCase {
  std::string op, shape;
  DType dtype;
  std::function<BenchCall(BenchTensors&)> make;
};

// dtype: of weights and activations. logits_rows: rows of a chunk of logits.
std::vector<BenchCase> bench_cases(const BenchShapes& shapes, DType dtype, std::int64_t logits_rows);
// The last of bench_cases(): grouped GEMMs of experts, each beside a dense GEMM of the same size.
std::vector<BenchCase> bench_expert_cases(const std::vector<ExpertShapes>& models, DType dtype);

}  // namespace tera
