#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/tensor/device.h"

namespace tera {

// For set-up. `ops` is what the group was joined with; `room` is i64 [ranks] of its device, and where a device is given
// instead, that is taken from it and kept.

// What every rank brings, by rank of the group.
std::vector<std::int64_t> gather_numbers(Comm& group, Ops& ops, const Tensor& room, std::int64_t own);
std::vector<std::int64_t> gather_numbers(Comm& group, Ops& ops, Device& device, std::int64_t own);

// All ranks of a group bring a hash of something that must be the same everywhere; `what` names it ("the
// configuration"). Where they differ, every rank throws the same UserError, which names the ranks that are not like the
// most, and who is.
void agree(Comm& group, Ops& ops, const Tensor& room, std::string_view what, std::uint64_t hash);
void agree(Comm& group, Ops& ops, Device& device, std::string_view what, std::uint64_t hash);

}  // namespace tera
