#pragma once
// One harness for all ops. A case names its tensors, says how the op is called, and what must come out, as fp64 loops
// written from the definition (or finite differences of such a loop, for a backward op). run() then runs it on every
// instruction set of this machine, or on the GPU when the program was told to (gpu.h), and checks
//   reference  every output within tolerance() of the fp64 value;
//   plan       the same call passes under PlanOps, and its workspace is enough: the real run gets exactly that much;
//   repeats    one and three threads, or two runs on the GPU, give the same bits;
//   guards     nothing outside the outputs changed: not the inputs, not the bytes around or between rows;
//   alignment  on the GPU, tensors that begin one element later give results within tolerance, too.

#include <functional>
#include <string>
#include <vector>

#include "tera/ops/ops.h"
#include "tests/support/fill.h"

namespace tera::test {

inline constexpr DType float_dtypes[] = {DType::f32, DType::bf16, DType::f16};

struct Handle {
  std::size_t index = 0;
};

// The tensors of a run: at[x] is where x lies now.
class Bound {
 public:
  explicit Bound(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
  const Tensor& operator[](Handle h) const { return tensors_[h.index]; }

 private:
  std::vector<Tensor> tensors_;
};

// fp64 values before the call: v[x][i], rounded as storage rounds them. expect() says what must be there afterwards.
class Reference {
 public:
  struct Expected {
    double value = 0, magnitude = 0;
  };
  explicit Reference(std::vector<Values> values) : values_(std::move(values)), expected_(values_.size()) {}

  const Values& operator[](Handle h) const { return values_[h.index]; }
  // magnitude: the sum of the absolute values of the terms, or a bound of it; tolerances scale with it.
  void expect(Handle h, std::size_t i, double value, double magnitude) {
    auto& all = expected_[h.index];
    all.resize(values_[h.index].size());
    all[i] = {value, magnitude};
  }
  const std::vector<Expected>& expected(Handle h) const { return expected_[h.index]; }

 private:
  std::vector<Values> values_;
  std::vector<std::vector<Expected>> expected_;
};

class OpCase {
 public:
  explicit OpCase(std::string name) : name_(std::move(name)) {}

  struct Extra {
    std::int64_t row_gap = 0;  // free elements after each row
    // For outputs: terms summed per element; 0: the result must be exact.
    std::int64_t terms = 1;
    // Set where values are rounded to this dtype on the way, not only at the end.
    bool rounded_inside = false;
    DType inside = DType::f32;
  };
  Handle input(const std::string& name, const Shape& shape, DType dtype, Values values, Extra extra);
  Handle input(const std::string& name, const Shape& shape, DType dtype, Values values);
  // An output starts from values (for ops that accumulate or work in place), or from garbage.
  Handle output(const std::string& name, const Shape& shape, DType dtype, Extra extra, Values values = {});

  void call(std::function<void(Ops&, const Bound&)> call) { call_ = std::move(call); }
  void reference(std::function<void(Reference&)> reference) { reference_ = std::move(reference); }

  static double stored(DType dtype, double value);  // the value as this dtype keeps it
  void run() const;

 private:
  struct Slot {
    std::string name;
    Shape shape;
    DType dtype;
    Values values;  // as storage rounds them
    Extra extra;
    bool is_output;
  };
  using Bytes = std::vector<std::vector<std::byte>>;
  struct Memory;  // host memory, one piece for each slot
  Memory make_memory() const;
  Bytes outputs_of(const Memory& memory) const;
  Bytes run_on_cpu(int isa, int threads) const;
  Bytes run_on_gpu(std::int64_t shift) const;
  void check_on_cpu(const Reference& expected) const;
  void check_on_gpu(const Reference& expected) const;
  void compare(const Bytes& outputs, const Reference& reference) const;

  std::string name_;
  std::vector<Slot> slots_;
  std::function<void(Ops&, const Bound&)> call_;
  std::function<void(Reference&)> reference_;
};

// From now on OpCase::run() does nothing each second time.
void run_every_other_case();

// d f / d x by central differences: fourth order, so that the error is far below fp32's.
Values finite_differences(const std::function<double(const Values&)>& f, const Values& x);

// Each wrong call throws an Error whose message holds all of the words given.
void expect_rejected(const std::function<void(Ops&)>& call, const std::vector<std::string>& words);

}  // namespace tera::test
