#pragma once
// The two files of tiktoken vocabularies: Megatron's JSON list of {"rank", "token_bytes", "token_str"}, and lines of
// base64 and rank (`.tiktoken`).

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

// Tokens by rank, in raw bytes; those of a rank that the file leaves out are empty. A JSON list is read up to
// `max_tokens` entries, in which the ranks count from 0 and the first 256 are the bytes in order.
std::vector<std::string> read_tiktoken_json(const std::filesystem::path& path, std::size_t max_tokens);
std::vector<std::string> read_tiktoken_lines(const std::filesystem::path& path);

// Nothing if the text is not base64 with its padding.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace tera
