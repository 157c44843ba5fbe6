#pragma once
// The optimizer's rule and its constants; the defaults are Megatron's.

#include <cstdint>
#include <span>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

enum class OptimizerKind : std::uint8_t { adam, sgd };
enum class MomentType : std::uint8_t { fp32, bf16 };  // the stored dtype of a moment; it is computed in fp32

struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::adam;
  double lr = 0;
  double min_lr = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  MomentType exp_avg_dtype = MomentType::fp32, exp_avg_sq_dtype = MomentType::fp32;
  double sgd_momentum = 0.9;
  double weight_decay = 0.01;
  double clip_grad = 1;
  bool use_distributed_optimizer = false;

  static std::span<const Field> fields();
  bool operator==(const OptimizerConfig&) const = default;
};

template <>
struct EnumNames<OptimizerKind> {
  static constexpr std::array values{std::pair{OptimizerKind::adam, std::string_view("adam")},
                                     std::pair{OptimizerKind::sgd, std::string_view("sgd")}};
};
template <>
struct EnumNames<MomentType> {
  static constexpr std::array values{std::pair{MomentType::fp32, std::string_view("fp32")},
                                     std::pair{MomentType::bf16, std::string_view("bf16")}};
};

}  // namespace tera
