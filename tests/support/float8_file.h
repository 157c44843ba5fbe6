#pragma once
// Files of 8-bit floats (FP8) made by hand, without our writer and decoder.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tera::test {

// (-1)^s 2^(e - bias) 1.m, or 2^(1 - bias) 0.m where e is 0.
inline float float8_value(std::uint8_t code, int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
  const bool top = exponent == (1 << exponent_bits) - 1, e4m3 = exponent_bits == 4;
  const double sign = (code & 0x80) != 0 ? -1 : 1, step = std::ldexp(1.0, -mantissa_bits);
  if (top && e4m3 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (top && !e4m3 && mantissa != 0) return std::numeric_limits<float>::quiet_NaN();
  if (top && !e4m3) return static_cast<float>(sign * std::numeric_limits<double>::infinity());
  if (exponent == 0) return static_cast<float>(sign * mantissa * step * std::ldexp(1.0, 1 - bias));
  return static_cast<float>(sign * (1 + mantissa * step) * std::ldexp(1.0, exponent - bias));
}

struct RawTensor {
  std::string name, dtype;  // "F8_E4M3"
  std::vector<std::int64_t> shape;
  std::string bytes;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline void write_raw_safetensors(const std::filesystem::path& path, const std::vector<RawTensor>& tensors) {
  nlohmann::json header;
  std::size_t at = 0;
  for (const RawTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << text;
  for (const RawTensor& tensor : tensors) out << tensor.bytes;
}

// Codes of all values but NaN, and a scale for each block; `values` are the decoded numbers.
struct Float8Matrix {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, values;
};

inline Float8Matrix make_float8(std::int64_t rows, std::int64_t columns, std::int64_t block_rows,
                                std::int64_t block_columns, std::uint32_t seed, float size = 1) {
  Float8Matrix out;
  const std::int64_t across = (columns + block_columns - 1) / block_columns;
  const std::int64_t down = (rows + block_rows - 1) / block_rows;
  const auto draw = [&seed] { return seed = seed * 1664525u + 1013904223u; };
  for (std::int64_t i = 0; i < down * across; ++i)
    out.scales.push_back(size * (1 + static_cast<float>(draw() >> 8) * 0x1p-22f));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      auto code = static_cast<std::uint8_t>(draw() >> 24);
      if ((code & 0x7f) == 0x7f) code ^= 1;
      out.codes.push_back(code);
      const auto block = static_cast<std::size_t>(r / block_rows * across + c / block_columns);
      out.values.push_back(float8_value(code, 4) * out.scales[block]);
    }
  return out;
}

}  // namespace tera::test
