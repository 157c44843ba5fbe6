#pragma once
// A rank with parameters of routed experts and others, and no blocks: gradients are known numbers. Each is a sum of
// small integers, one for every item of a global batch, so that sums over any ranks are exact, and every layout must
// give the same bits.

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/checkpoint/checkpoint.h"
#include "tera/comm/world.h"
#include "tera/optim/data_parallel.h"
#include "tera/optim/optimizer.h"
#include "tera/train/rank_layout.h"

namespace tera::test {

using Tensors = std::map<std::string, std::vector<float>>;  // global tensors by outside name

struct ExpertCase {
  MeshSizes mesh{};
  Sharding sharding = Sharding::no_shard;
  bool overlap = false;
  DType compute = DType::f32;
  std::int64_t bucket_size = 1;  // elements; 1: a bucket of each kind for every block
  std::string describe() const;
};

constexpr double expert_rate = 0.01;  // learning rate
OptimizerConfig expert_optimizer();

// Gradients of a step of the global model, summed over items and microbatches.
std::vector<float> global_gradient(const Part& part, int step);

// Tensors gathered from the ranks: every element comes from at least one, with the same value from all.
class Gathered {
 public:
  void put(const Part& part, std::int64_t row, std::int64_t column, float value);
  const Tensors& tensors() const { return tensors_; }
  bool complete() const;  // for every tensor of which any element came
  bool contradicted() const { return contradicted_; }

 private:
  Tensors tensors_;
  std::map<std::string, std::vector<bool>> came_;
  bool contradicted_ = false;
};

// The results of all ranks after a step.
struct ExpertResult {
  std::mutex mutex;
  Gathered gradients;  // summed; each rank adds its shard
  Gathered values;     // as the next step's forward sees them
  Gathered masters;
  std::vector<float> norms;  // gradient norm on each rank
};

class ExpertRank {
 public:
  static constexpr int layers = 4, microbatches = 2;

  ExpertRank(const ExpertCase& one, RankHandle& rank_handle);

  void step(int number, ExpertResult& result);  // counts from 0
  void save(const std::filesystem::path& root, int steps);
  void load(const std::filesystem::path& root);

  const ParamStore& params() const { return params_; }
  const RankLayout& layout() const { return layout_; }

  // Parameters of `layers` layers from the first one on, each in a block of its own.
  static void build(ParamStore& params, const TensorParallel& tp, const ExpertParallel& experts, int first_layer,
                    int layers);

 private:
  void bind();
  void run(int number, ExpertResult* seen);
  void add_gradients(Param& param, int number, int microbatch);
  void spoil_gradients();
  ModelState state() const;
  void see_values(int block, ExpertResult& result);
  void see_own(ExpertResult& result, bool gradients);

  cpu::CpuDevice device_;
  cpu::CpuOps ops_;
  ExpertCase case_;
  RankLayout layout_;
  ParamStore params_;
  Optimizer optimizer_;
  std::unique_ptr<Comm> world_;
  std::unique_ptr<DataParallel> replicas_;
  int blocks_ = 0;
};

}  // namespace tera::test
