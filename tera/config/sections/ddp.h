#pragma once
// Data parallelism: how replicas reduce gradients, and shard gradients, optimizer state and weights (ZeRO, FSDP).

#include <cstdint>
#include <span>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

// What is sharded over data-parallel ranks: ZeRO stages 0 to 3, each of which includes the stages before it.
enum class Sharding : std::uint8_t { no_shard, optim, optim_grads, optim_grads_params };

struct DdpConfig {
  Sharding data_parallel_sharding_strategy = Sharding::no_shard;
  std::int64_t bucket_size = 0;

  static std::span<const Field> fields();
  bool operator==(const DdpConfig&) const = default;
};

template <>
struct EnumNames<Sharding> {
  static constexpr std::array values{std::pair{Sharding::no_shard, std::string_view("no_shard")},
                                     std::pair{Sharding::optim, std::string_view("optim")},
                                     std::pair{Sharding::optim_grads, std::string_view("optim_grads")},
                                     std::pair{Sharding::optim_grads_params, std::string_view("optim_grads_params")}};
};

}  // namespace tera
