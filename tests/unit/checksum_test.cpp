#include "tera/base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace tera::test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Bit by bit, as the polynomial division is defined.
std::uint32_t divide(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

std::vector<std::byte> noise(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

// RFC 3720, B.4, and the usual check value.
TEST(Checksum, KnownValues) {
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  for (const auto crc : {crc32c, crc32c_by_tables}) {
    EXPECT_EQ(crc({}, 0), 0u);
    EXPECT_EQ(crc(bytes_of("123456789"), 0), 0xe3069283u);
    EXPECT_EQ(crc(zeros, 0), 0x8a9136aau);
    EXPECT_EQ(crc(ones, 0), 0x62a8ab43u);
  }
}

TEST(Checksum, EveryLengthAndEveryCutGiveTheSame) {
  const std::vector<std::byte> all = noise(40000);
  for (const std::size_t size : {1u, 7u, 8u, 9u, 100u, 12287u, 12288u, 12289u, 24576u, 39999u}) {
    const auto bytes = std::span(all).subspan(1, size);
    const std::uint32_t expected = divide(bytes);
    EXPECT_EQ(crc32c(bytes), expected) << size;
    EXPECT_EQ(crc32c_by_tables(bytes), expected) << size;
    for (const std::size_t cut : {std::size_t{0}, size / 3, size / 2, size - 1, size})
      EXPECT_EQ(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))), expected) << size << " cut at " << cut;
  }
}

TEST(Checksum, OneBitChangesIt) {
  std::vector<std::byte> bytes = noise(20000);
  const std::uint32_t before = crc32c(bytes);
  for (const std::size_t at : {0u, 5000u, 13000u, 19999u}) {
    bytes[at] ^= std::byte{4};
    EXPECT_NE(crc32c(bytes), before) << at;
    bytes[at] ^= std::byte{4};
  }
  EXPECT_EQ(crc32c(bytes), before);
}

}  // namespace
}  // namespace tera::test
