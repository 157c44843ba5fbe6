#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tera {

// The dialect of a regular expression: that of `tokenizers` (Oniguruma with Ruby's syntax, where ^ and $ mean lines),
// or that of tiktoken (Rust's, where they mean the text).
enum class RegexDialect : std::uint8_t { oniguruma, rust };

// Translates an expression for PCRE2 with UTF: classes become ranges of code points by our own tables, and syntax that
// PCRE2 reads differently is rewritten. An expression that has no exact translation is a UserError, which names
// `where`.
std::string translate_regex(std::string_view pattern, RegexDialect dialect, std::string_view where);

}  // namespace tera
