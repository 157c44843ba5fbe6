#pragma once
// CRC-32C (Castagnoli) of bytes that come in pieces: what storage systems check their data with. Catches what disks and
// networks do to bytes, not what an attacker does.

#include <cstddef>
#include <cstdint>
#include <span>

namespace tera {

// Of what came before, `crc`, and these bytes behind it; the checksum of nothing is 0.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

// The same by tables, on any processor; crc32c() takes the processor's instruction where there is one.
std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tera
