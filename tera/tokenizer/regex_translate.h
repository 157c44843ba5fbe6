#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tera {

// Whose regular expressions: those of `tokenizers` (Oniguruma with Ruby's syntax, where ^ and $ mean lines), or those
// of tiktoken (Rust's, where they mean the text).
enum class RegexDialect : std::uint8_t { oniguruma, rust };

// The same expression for PCRE2 with UTF: classes become ranges of code points by our own tables, and where PCRE2 reads
// something differently it is written in another way. What cannot be said exactly is a UserError; `where` is named in
// it.
std::string translate_regex(std::string_view pattern, RegexDialect dialect, std::string_view where);

}  // namespace tera
