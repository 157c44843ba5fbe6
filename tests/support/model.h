#pragma once
// A whole model on the CPU backend, for tests that look inside: any schedule, logits, every gradient.

#include <memory>
#include <string>
#include <vector>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/config/setup.h"
#include "tera/models/build.h"
#include "tera/pipeline/pipeline.h"
#include "tera/plan/memory_plan.h"

namespace tera::test {

struct Batch {  // one microbatch, T = batch * seq rows
  std::vector<std::int32_t> tokens, targets;
  std::int64_t batch = 1;
  std::vector<std::int32_t> offsets = {};  // where documents begin, and T; as many as Options says
};

Batch random_batch(std::int64_t batch, std::int64_t seq, std::int64_t vocab, std::uint64_t seed);

class Model {
 public:
  struct Options {
    int threads = 1;
    cpu::Isa isa = cpu::best_isa();
    DType compute = DType::f32;
    Schedule schedule = one_stage(1);  // as many microbatches as it names
    std::int64_t batch = 1, seq = 0;   // size of every microbatch
    std::int64_t documents = 0;        // packed into it; 0: `batch` sequences of equal length
    bool late_copies = false;          // to and from the host (late_copy_ops.h)
  };
  Model(const ModelShape& shape, const Options& options);

  ParamStore& params() { return params_; }
  Ops& ops() { return *ops_; }

  // Runs the schedule; gradients accumulate into zeros. Returns the mean of the counted token losses.
  double train(const std::vector<Batch>& batches);
  double train(const std::vector<Batch>& batches, ParamHooks& hooks);
  double evaluate(const Batch& batch);                   // mean loss of a forward pass that keeps nothing
  std::vector<float> logits(const Batch& batch);         // [T,padded V]
  std::vector<float> gradient(const std::string& part);  // by outside name, [out,in]
  std::vector<float> all_gradients();

  // Compares the peak bytes of the real run with the plan, by the plan's names.
  bool peaks_as_planned() const;
  bool stashes_are_empty() const;
  std::size_t planned_bytes() const;       // device memory that a step allocates and frees
  std::size_t planned_host_bytes() const;  // for offloaded activations
  std::size_t offload_buffer_bytes() const;

 private:
  void bind(Arena& weights, Arena& constants, Arena& grads, Arena& inputs);
  void run(Pipeline& pipeline);
  void load(std::size_t microbatch, const Batch& batch, float scale);

  ModelShape shape_;
  Options options_;
  cpu::CpuDevice device_;
  std::unique_ptr<cpu::CpuOps> ops_;
  ParamStore params_;
  Blocks blocks_;
  std::vector<MicroBatch> batch_;
  Tensor logits_;
  Stage stage_;
  StageMemory measured_, real_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace tera::test
