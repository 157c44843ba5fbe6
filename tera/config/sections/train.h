#pragma once
// Length of the training, batch sizes and evaluation interval.

#include <cstdint>
#include <span>
#include <vector>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

enum class CudaGraphImpl : std::uint8_t { none, full_iteration };
// global: the sum of token losses over the tokens of the global batch; microbatch: the mean of the microbatches' means.
enum class LossReduction : std::uint8_t { global, microbatch };

struct TrainConfig {
  std::int64_t train_iters = 0;
  std::int64_t train_samples = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 0;
  std::vector<std::int64_t> rampup_batch_size;
  std::int64_t seq_length = 1024;
  std::int64_t seed = 1234;
  std::int64_t eval_interval = 1000;
  std::int64_t eval_iters = 100;
  bool deterministic = true;
  CudaGraphImpl cuda_graph_impl = CudaGraphImpl::full_iteration;
  LossReduction loss_reduction = LossReduction::global;
  double exit_duration_in_mins = 0;

  static std::span<const Field> fields();
  bool operator==(const TrainConfig&) const = default;
};

template <>
struct EnumNames<CudaGraphImpl> {
  static constexpr std::array values{std::pair{CudaGraphImpl::none, std::string_view("none")},
                                     std::pair{CudaGraphImpl::full_iteration, std::string_view("full_iteration")}};
};

template <>
struct EnumNames<LossReduction> {
  static constexpr std::array values{std::pair{LossReduction::global, std::string_view("global")},
                                     std::pair{LossReduction::microbatch, std::string_view("microbatch")}};
};

}  // namespace tera
