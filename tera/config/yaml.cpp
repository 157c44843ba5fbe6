#include "tera/config/yaml.h"

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <cstdint>
#include <sstream>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/utf8.h"

namespace tera {
namespace {

// A comment that is appended to the text. The parser lets an open quote run to the end, so a value that contains this
// comment was never closed.
constexpr std::string_view end_mark = "# end of text";

[[noreturn]] void fail_anchor_at(const std::string& source, int line) {
  fail_user(
      "{}:{}: anchors and aliases (& and *) are not supported; quote a text that begins so, as in [\"*experts*\"], and "
      "share settings with 'extends'",
      source, line);
}

int line_of(const YAML::Mark& mark) { return mark.line + 1; }

// Whether the parser's message is about an anchor or alias; the parser has no error codes.
bool is_about_anchors(const std::string& message) {
  return message == YAML::ErrorMsg::UNKNOWN_ANCHOR || message == YAML::ErrorMsg::ALIAS_NOT_FOUND ||
         message == YAML::ErrorMsg::ANCHOR_NOT_FOUND || message == YAML::ErrorMsg::CHAR_IN_ALIAS ||
         message == YAML::ErrorMsg::CHAR_IN_ANCHOR;
}

// Builds the tree from the parser's events. The parser recurses once per level and reports the level first, so throwing
// from here at max_yaml_depth bounds its stack.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& source) : source_(source) {}

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    require_user(++documents_ == 1, "{}:{}: a second document starts here; a config is one document", source_,
                 line_of(mark));
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add({.kind = YamlNode::Kind::null, .line = line_of(mark)}, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { fail_anchor(mark); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    require_user(value.find(end_mark) == std::string::npos, "{}:{}: a quote is opened here and never closed", source_,
                 line_of(mark));
    const bool quoted = tag == "!";
    const bool null = !quoted && (value.empty() || value == "~" || value == "null");
    YamlNode node{
        .kind = null ? YamlNode::Kind::null : YamlNode::Kind::scalar, .line = line_of(mark), .quoted = quoted};
    node.text = value;
    add(std::move(node), mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::list, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    YamlNode node;
    std::string key{};  // in a map: the key whose value comes next
    bool has_key = false;
  };

  [[noreturn]] void fail_anchor(const YAML::Mark& mark) const { fail_anchor_at(source_, line_of(mark)); }
  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) fail_anchor(mark);
  }
  // The parser itself tags plain nodes "?" and quoted ones "!"; any other tag was written in the file.
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    require_user(tag.empty() || tag == "?" || tag == "!", "{}:{}: tags such as '{}' are not supported", source_,
                 line_of(mark), tag);
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    require_user(levels_.size() < max_yaml_depth, "{}:{}: nested deeper than {} levels", source_, line_of(mark),
                 max_yaml_depth);
    require_user(levels_.empty() || levels_.back().node.kind != YamlNode::Kind::map || levels_.back().has_key,
                 "{}:{}: a list or map stands where a key should be; is a bracket left open?", source_, line_of(mark));
    levels_.push_back({.node = {.kind = kind, .line = line_of(mark)}});
  }

  void close() {
    YamlNode node = std::move(levels_.back().node);
    levels_.pop_back();
    add_value(std::move(node));
  }

  void add(YamlNode node, const YAML::Mark& mark) {
    if (!levels_.empty() && levels_.back().node.kind == YamlNode::Kind::map && !levels_.back().has_key) {
      take_key(node, mark);
    } else {
      add_value(std::move(node));
    }
  }

  void take_key(const YamlNode& node, const YAML::Mark& mark) {
    Level& level = levels_.back();
    require_user(node.kind == YamlNode::Kind::scalar, "{}:{}: a key is missing before ':'", source_, line_of(mark));
    if (const YamlNode* earlier = level.node.find(node.text))
      fail_user("{}:{}: '{}' is given twice; first in line {}", source_, line_of(mark), node.text, earlier->line);
    require_user(level.node.entries.size() < max_yaml_keys, "{}:{}: more than {} keys in one map", source_,
                 line_of(mark), max_yaml_keys);
    level.key = node.text;
    level.has_key = true;
  }

  void add_value(YamlNode node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::list) {
      level.node.items.push_back(std::move(node));
    } else {
      level.node.entries.emplace_back(std::move(level.key), std::move(node));
      level.has_key = false;
    }
  }

  const std::string& source_;
  std::vector<Level> levels_;
  YamlNode root_;
  int documents_ = 0;
};

void check_text(std::string_view text, const std::string& source) {
  require_user(text.size() <= max_yaml_bytes, "{}: longer than {} bytes, which no config is", source, max_yaml_bytes);
  int line = 1;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step character = next_utf8(text.substr(at));
    const auto byte = static_cast<std::uint8_t>(text[at]);
    require_user(character.valid, "{}:{}: not UTF-8 text (byte 0x{:02x})", source, line, byte);
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t') || byte == 0x7f;
    require_user(!control, "{}:{}: control character 0x{:02x} in the text", source, line, byte);
    if (byte == '\n') ++line;
    at += character.bytes;
  }
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const auto& [name, node] : entries)
    if (name == key) return &node;
  return nullptr;
}

YamlNode parse_yaml(std::string_view text, const std::string& source) {
  check_text(text, source);
  std::istringstream stream{fmt::format("{}\n{}\n", text, end_mark)};
  TreeBuilder builder(source);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    if (is_about_anchors(error.msg)) fail_anchor_at(source, line_of(error.mark));
    fail_user("{}:{}: not valid YAML: {}", source, line_of(error.mark), error.msg);
  }
  return builder.take();
}

YamlNode read_yaml_file(const std::string& path) {
  YamlNode node = parse_yaml(read_whole_file(path, max_yaml_bytes), path);
  require_user(node.kind != YamlNode::Kind::null, "{}: empty; a config has at least 'model: {{arch: ...}}'", path);
  return node;
}

std::string describe_node(const YamlNode& node) {
  constexpr std::size_t shown = 60;
  switch (node.kind) {
    case YamlNode::Kind::null: return "nothing";
    case YamlNode::Kind::list: return "a list";
    case YamlNode::Kind::map: return "a map";
    case YamlNode::Kind::scalar: break;
  }
  if (node.text.size() <= shown) return fmt::format("'{}'", node.text);
  std::size_t cut = shown;
  while (cut > 0 && (static_cast<std::uint8_t>(node.text[cut]) & 0xc0u) == 0x80u) --cut;
  return fmt::format("'{}...'", node.text.substr(0, cut));
}

}  // namespace tera
