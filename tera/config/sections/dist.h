#pragma once
// The device of a run and its parallel layout (tp, cp, pp, ep); names and meanings are Megatron's.

#include <cstdint>
#include <span>
#include <string>

#include "tera/base/enum_names.h"
#include "tera/parallel/mesh_plan.h"

namespace tera {

struct Field;

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };
enum class CpuIsa : std::uint8_t { automatic, baseline, avx2, avx512 };
// Context parallelism of attention. p2p: ring attention, keys and values rotate; all_gather: keys and values are
// gathered; a2a: Ulysses, an all-to-all of heads.
enum class CpCommType : std::uint8_t { p2p, all_gather, a2a };
enum class PipelineScheduleKind : std::uint8_t { automatic, one_f_one_b, interleaved, zero_bubble, zero_bubble_v };

struct DistConfig {
  DeviceChoice device = DeviceChoice::automatic;
  std::int64_t threads = 0;
  CpuIsa cpu_isa = CpuIsa::automatic;
  std::int64_t tensor_model_parallel_size = 1;
  bool sequence_parallel = false;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  CpCommType cp_comm_type = CpCommType::p2p;
  bool dynamic_context_parallel = false;
  std::int64_t expert_model_parallel_size = 1;
  std::int64_t expert_tensor_parallel_size = 0;
  std::int64_t virtual_pipeline_model_parallel_size = 0;
  PipelineScheduleKind pipeline_schedule = PipelineScheduleKind::automatic;
  std::int64_t microbatch_group_size_per_vp_stage = 0;
  std::string pipeline_model_parallel_layout;
  std::int64_t num_layers_in_first_pipeline_stage = 0;
  std::int64_t num_layers_in_last_pipeline_stage = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  MeshOrder order = MeshOrder::tp_cp_ep_dp_pp;
  double timeout_seconds = 600;

  static std::span<const Field> fields();
  bool operator==(const DistConfig&) const = default;
};

template <>
struct EnumNames<DeviceChoice> {
  static constexpr std::array values{std::pair{DeviceChoice::automatic, std::string_view("auto")},
                                     std::pair{DeviceChoice::cpu, std::string_view("cpu")},
                                     std::pair{DeviceChoice::cuda, std::string_view("cuda")}};
};
template <>
struct EnumNames<CpuIsa> {
  static constexpr std::array values{
      std::pair{CpuIsa::automatic, std::string_view("auto")}, std::pair{CpuIsa::baseline, std::string_view("baseline")},
      std::pair{CpuIsa::avx2, std::string_view("avx2")}, std::pair{CpuIsa::avx512, std::string_view("avx512")}};
};
template <>
struct EnumNames<CpCommType> {
  static constexpr std::array values{std::pair{CpCommType::p2p, std::string_view("p2p")},
                                     std::pair{CpCommType::all_gather, std::string_view("all_gather")},
                                     std::pair{CpCommType::a2a, std::string_view("a2a")}};
};
template <>
struct EnumNames<PipelineScheduleKind> {
  static constexpr std::array values{std::pair{PipelineScheduleKind::automatic, std::string_view("auto")},
                                     std::pair{PipelineScheduleKind::one_f_one_b, std::string_view("1f1b")},
                                     std::pair{PipelineScheduleKind::interleaved, std::string_view("interleaved")},
                                     std::pair{PipelineScheduleKind::zero_bubble, std::string_view("zero_bubble")},
                                     std::pair{PipelineScheduleKind::zero_bubble_v, std::string_view("zero_bubble_v")}};
};

}  // namespace tera
