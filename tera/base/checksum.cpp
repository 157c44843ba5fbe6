#include "tera/base/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tera {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78;  // Castagnoli, bits reversed

// The product of polynomials modulo the CRC's, lowest power in the highest bit. Appending a zero byte multiplies a
// checksum by x^8.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if (a & 0x80000000) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ polynomial : b >> 1;
  }
  return product;
}

using Table = std::array<std::uint32_t, 256>;
using Tables = std::array<Table, 8>;

// Slicing-by-8: tables[k][b] is the checksum of the byte b followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ polynomial : crc >> 1;
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  return tables;
}

constexpr Tables tables = make_tables();

std::uint64_t load_word(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

#if defined(__x86_64__)

// The CRC instruction has a latency of three cycles and a throughput of one: three stretches of a block are computed in
// parallel, and a checksum is shifted over a stretch by one table look-up for each of its own four bytes.
constexpr std::size_t stretch = 4096;

constexpr std::array<Table, 4> make_shift() {
  std::uint32_t power = 0x80000000, square = 0x00800000;  // 1 and x^8; to x^(8 * stretch) by squaring
  for (std::size_t n = stretch; n > 0; n >>= 1, square = multiply(square, square))
    if (n & 1) power = multiply(power, square);
  std::array<Table, 4> shift{};
  for (std::size_t at = 0; at < 4; ++at)
    for (std::uint32_t byte = 0; byte < 256; ++byte) shift[at][byte] = multiply(byte << (8 * at), power);
  return shift;
}

constexpr std::array<Table, 4> shift_tables = make_shift();

std::uint32_t shifted(std::uint64_t crc) {
  return shift_tables[0][crc & 0xff] ^ shift_tables[1][crc >> 8 & 0xff] ^ shift_tables[2][crc >> 16 & 0xff] ^
         shift_tables[3][crc >> 24 & 0xff];
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_by_instruction(std::span<const std::byte> bytes,
                                                                      std::uint32_t crc) {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t first = ~crc;
  for (; left >= 3 * stretch; left -= 3 * stretch, at += 3 * stretch) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < stretch; i += 8) {
      first = _mm_crc32_u64(first, load_word(at + i));
      second = _mm_crc32_u64(second, load_word(at + stretch + i));
      third = _mm_crc32_u64(third, load_word(at + 2 * stretch + i));
    }
    first = shifted(shifted(first) ^ second) ^ third;
  }
  for (; left >= 8; left -= 8, at += 8) first = _mm_crc32_u64(first, load_word(at));
  auto last = static_cast<std::uint32_t>(first);
  for (; left > 0; --left, ++at) last = _mm_crc32_u8(last, static_cast<unsigned char>(*at));
  return ~last;
}

#endif

}  // namespace

std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    const std::uint64_t word = load_word(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= tables[7 - k][word >> (8 * k) & 0xff];
  }
  for (; left > 0; --left, ++at) crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<std::uint32_t>(*at)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_by_instruction(bytes, crc);
#endif
  return crc32c_by_tables(bytes, crc);
}

}  // namespace tera
