#pragma once
// Number types of the elements of a .bin file, with the codes that a .idx file has for them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tera/base/enum_names.h"
#include "tera/base/error.h"

namespace tera {

enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, f64 = 6, f32 = 7, u16 = 8 };

template <>
struct EnumNames<TokenType> {
  static constexpr std::array values{
      std::pair{TokenType::u8, std::string_view("uint8")},    std::pair{TokenType::i8, std::string_view("int8")},
      std::pair{TokenType::i16, std::string_view("int16")},   std::pair{TokenType::i32, std::string_view("int32")},
      std::pair{TokenType::i64, std::string_view("int64")},   std::pair{TokenType::f64, std::string_view("float64")},
      std::pair{TokenType::f32, std::string_view("float32")}, std::pair{TokenType::u16, std::string_view("uint16")}};
};

// Calls with a value of the C++ type of the elements: visit_token_type(type, [](auto like) { using T = decltype(like);
// ... }).
template <class Call>
decltype(auto) visit_token_type(TokenType type, Call&& call) {
  switch (type) {
    case TokenType::u8: return call(std::uint8_t{});
    case TokenType::i8: return call(std::int8_t{});
    case TokenType::i16: return call(std::int16_t{});
    case TokenType::i32: return call(std::int32_t{});
    case TokenType::i64: return call(std::int64_t{});
    case TokenType::f64: return call(double{});
    case TokenType::f32: return call(float{});
    case TokenType::u16: return call(std::uint16_t{});
  }
  fail("token type {} does not exist", static_cast<int>(type));
}

inline std::size_t size_of(TokenType type) {
  return visit_token_type(type, [](auto like) { return sizeof(like); });
}

inline bool is_integer(TokenType type) { return type != TokenType::f32 && type != TokenType::f64; }

// The type that Megatron-LM's preprocessor chooses.
constexpr TokenType token_type_for(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
}

}  // namespace tera
