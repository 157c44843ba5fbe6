#pragma once
// CRC-32C (Castagnoli) of bytes that come in pieces, as storage systems use it. It detects errors of disks and
// networks, not attacks.

#include <cstddef>
#include <cstdint>
#include <span>

namespace tera {

// Continues the checksum `crc` of earlier bytes with these; that of no bytes is 0.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

// The implementation with tables, for any processor; crc32c() uses the SSE4.2 instruction where there is one.
std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tera
