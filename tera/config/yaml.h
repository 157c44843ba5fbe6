#pragma once
// Parses YAML text to a small tree with line numbers. Config files are untrusted data: size, depth and encoding are
// checked before the parser sees them or while it runs; anchors, aliases, tags and second documents are refused.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tera {

inline constexpr std::size_t max_yaml_bytes = std::size_t{1} << 20;
inline constexpr std::size_t max_yaml_depth = 16;
inline constexpr std::size_t max_yaml_keys = 1000;  // in one map

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  int line = 0;         // counted from 1
  bool quoted = false;  // a quoted scalar is text, whatever it looks like
  std::string text{};   // text of a scalar
  std::vector<YamlNode> items{};
  std::vector<std::pair<std::string, YamlNode>> entries{};  // in the order written; keys differ

  const YamlNode* find(std::string_view key) const;
};

// `source` names the text in messages: a path, or "override model.num_layers". Throws UserError.
YamlNode parse_yaml(std::string_view text, const std::string& source);

// Refuses missing files, folders, files over max_yaml_bytes, empty files and text that is not UTF-8.
YamlNode read_yaml_file(const std::string& path);

// "a map", "a list", "nothing" or the scalar itself in quotes, cut to a readable length.
std::string describe_node(const YamlNode& node);

}  // namespace tera
