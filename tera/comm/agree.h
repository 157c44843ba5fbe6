#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tera/comm/comm.h"
#include "tera/tensor/device.h"

namespace tera {

// Set-up collectives on single numbers. `ops` is what the group was joined with. `buffer` is i64 [ranks] on its device;
// where a device is given instead, the buffer is allocated there and stays allocated.

// An all-gather of one number per rank, in the order of ranks.
std::vector<std::int64_t> gather_numbers(Comm& group, Ops& ops, const Tensor& buffer, std::int64_t local);
std::vector<std::int64_t> gather_numbers(Comm& group, Ops& ops, Device& device, std::int64_t local);

// Checks that all ranks of a group have the same hash of something; `what` names it ("the configuration"). Where hashes
// differ, every rank throws the same UserError, which names the ranks of the majority and those that differ from it.
void agree(Comm& group, Ops& ops, const Tensor& buffer, std::string_view what, std::uint64_t hash);
void agree(Comm& group, Ops& ops, Device& device, std::string_view what, std::uint64_t hash);

}  // namespace tera
