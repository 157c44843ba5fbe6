#pragma once
// How text becomes token ids.

#include <cstdint>
#include <span>

#include "tera/base/enum_names.h"

namespace tera {

struct Field;

enum class TokenizerKind : std::uint8_t { byte, null };

struct TokenizerConfig {
  TokenizerKind tokenizer_type = TokenizerKind::byte;

  static std::span<const Field> fields();
  bool operator==(const TokenizerConfig&) const = default;
};

template <>
struct EnumNames<TokenizerKind> {
  static constexpr std::array values{std::pair{TokenizerKind::byte, std::string_view("ByteTokenizer")},
                                     std::pair{TokenizerKind::null, std::string_view("NullTokenizer")}};
};

}  // namespace tera
