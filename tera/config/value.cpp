#include "tera/config/value.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "tera/base/joined.h"
#include "tera/base/utf8.h"

namespace tera {
namespace {

template <class T>
T& as(void* value) {
  return *static_cast<T*>(value);
}
template <class T>
const T& as(const void* value) {
  return *static_cast<const T*>(value);
}

// "'abc' is not a number".
std::string not_a(const YamlNode& node, std::string_view what) {
  const bool quotes_hurt = node.kind == YamlNode::Kind::scalar && node.quoted;
  return fmt::format("{} is not {}{}", describe_node(node), what, quotes_hurt ? "; leave out the quotes" : "");
}

bool is_plain(const YamlNode& node) { return node.kind == YamlNode::Kind::scalar && !node.quoted; }

std::string read_boolean(const YamlNode& node, bool& value) {
  const std::string& text = node.text;
  const bool yes = text == "true" || text == "True" || text == "TRUE";
  const bool no = text == "false" || text == "False" || text == "FALSE";
  if (!is_plain(node) || !(yes || no)) return not_a(node, "true or false");
  value = yes;
  return {};
}

std::string_view without_plus(std::string_view text) { return text.starts_with('+') ? text.substr(1) : text; }

// Parses all of `text`, or returns an error code.
template <class T>
std::errc parse_number(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{}) return error;
  return stop == end ? std::errc{} : std::errc::invalid_argument;
}

std::string read_integer(const YamlNode& node, std::int64_t& value) {
  if (!is_plain(node)) return not_a(node, "a whole number");
  const std::string_view text = without_plus(node.text);
  std::int64_t parsed = 0;
  const std::errc error = parse_number(text, parsed);
  if (error == std::errc::result_out_of_range) return fmt::format("{} does not fit in 64 bits", describe_node(node));
  if (error != std::errc{}) {
    double number = 0;
    if (parse_number(text, number) == std::errc{} && std::abs(number) < 1e15 && number == std::trunc(number))
      return fmt::format("{} is not a whole number; write {}", describe_node(node), static_cast<std::int64_t>(number));
    return not_a(node, "a whole number");
  }
  value = parsed;
  return {};
}

std::string read_number(const YamlNode& node, double& value) {
  if (!is_plain(node)) return not_a(node, "a number");
  std::string_view text = without_plus(node.text);
  const bool hexadecimal = text.find_first_of("xX") != std::string_view::npos;
  double parsed = 0;
  const std::errc error = hexadecimal ? std::errc::invalid_argument : parse_number(text, parsed);
  if (error == std::errc::result_out_of_range)
    return fmt::format("{} is out of the range of a double", describe_node(node));
  const bool special = text.find("nan") != std::string_view::npos || text.find("inf") != std::string_view::npos ||
                       text.find("NaN") != std::string_view::npos;
  if (special || (error == std::errc{} && !std::isfinite(parsed))) return not_a(node, "a finite number");
  if (error != std::errc{}) return not_a(node, "a number");
  value = parsed;
  return {};
}

std::string read_text(const YamlNode& node, std::string& value) {
  if (node.kind != YamlNode::Kind::scalar && node.kind != YamlNode::Kind::null) return not_a(node, "text");
  value = node.kind == YamlNode::Kind::null ? std::string() : node.text;
  return {};
}

std::string read_text_list(const YamlNode& node, std::vector<std::string>& value) {
  if (node.kind == YamlNode::Kind::map) return "a map is not a text or a list of texts";
  std::vector<std::string> texts;
  if (node.kind == YamlNode::Kind::scalar) texts.push_back(node.text);
  for (const YamlNode& item : node.items) {
    if (item.kind != YamlNode::Kind::scalar)
      return fmt::format("{} in line {} of the list is not text", describe_node(item), item.line);
    texts.push_back(item.text);
  }
  value = std::move(texts);
  return {};
}

std::string read_integer_list(const YamlNode& node, std::vector<std::int64_t>& value) {
  if (node.kind != YamlNode::Kind::list && node.kind != YamlNode::Kind::null)
    return not_a(node, "a list of whole numbers");
  std::vector<std::int64_t> numbers(node.items.size());
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (std::string wrong = read_integer(node.items[i], numbers[i]); !wrong.empty()) return wrong;
  value = std::move(numbers);
  return {};
}

std::string read_number_list(const YamlNode& node, std::vector<double>& value) {
  if (node.kind == YamlNode::Kind::map) return "a map is not a number or a list of numbers";
  std::vector<double> numbers(node.kind == YamlNode::Kind::scalar ? 1 : node.items.size());
  if (node.kind == YamlNode::Kind::scalar)
    if (std::string wrong = read_number(node, numbers[0]); !wrong.empty()) return wrong;
  for (std::size_t i = 0; i < node.items.size(); ++i)
    if (std::string wrong = read_number(node.items[i], numbers[i]); !wrong.empty()) return wrong;
  value = std::move(numbers);
  return {};
}

// Reads one {prefix, weight}; both must be given, and no other key.
std::string read_blend_part(const YamlNode& node, BlendPart& part) {
  const YamlNode* prefix = node.find("prefix");
  const YamlNode* weight = node.find("weight");
  if (node.kind != YamlNode::Kind::map || prefix == nullptr || weight == nullptr || node.entries.size() != 2 ||
      prefix->kind != YamlNode::Kind::scalar)
    return fmt::format("{} in line {} of the list is not {{prefix: P, weight: W}}", describe_node(node), node.line);
  part.prefix = prefix->text;
  return read_number(*weight, part.weight);
}

std::string read_blend(const YamlNode& node, std::vector<BlendPart>& value) {
  if (node.kind != YamlNode::Kind::list && node.kind != YamlNode::Kind::null)
    return not_a(node, "a list of {prefix: P, weight: W}");
  std::vector<BlendPart> parts(node.items.size());
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (std::string wrong = read_blend_part(node.items[i], parts[i]); !wrong.empty()) return wrong;
  value = std::move(parts);
  return {};
}

std::string read_choice(const Field& field, const YamlNode& node, void* value) {
  if (node.kind == YamlNode::Kind::scalar && field.choice->set(value, node.text)) return {};
  return fmt::format("{} is not {}", describe_node(node), join_names(field.choice->names()));
}

// Plain when every YAML reader sees the same text, else in double quotes.
std::string quote(const std::string& text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '/'; };
  const auto inner = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-'; };
  const bool reserved = text == "null" || text == "true" || text == "false";
  if (!text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), inner) && !reserved) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string write_text_list(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& text : texts) out += (out.size() > 1 ? ", " : "") + quote(text);
  return out + "]";
}

std::string write_blend(const std::vector<BlendPart>& parts) {
  std::string out = "[";
  for (const BlendPart& part : parts)
    out += fmt::format("{}{{prefix: {}, weight: {}}}", out.size() > 1 ? ", " : "", quote(part.prefix), part.weight);
  return out + "]";
}

double as_double(const Field& field, const void* value) {
  return field.kind == FieldKind::integer ? static_cast<double>(as<std::int64_t>(value)) : as<double>(value);
}

std::string format_limit(double limit) {
  const bool is_integer = std::abs(limit) < 1e15 && limit == std::trunc(limit);
  return is_integer ? fmt::format("{}", static_cast<std::int64_t>(limit)) : fmt::format("{}", limit);
}

std::string check_utf8(std::string_view text) {
  const std::size_t good = valid_utf8_prefix(text);
  if (good == text.size()) return {};
  return fmt::format("must be UTF-8 text, but byte {} is 0x{:02x}", good, static_cast<unsigned char>(text[good]));
}

std::string describe_limits(const Limits& limits) {
  const bool range = std::isfinite(limits.low) && std::isfinite(limits.high) && !limits.low_open && !limits.high_open;
  if (range) return fmt::format("from {} to {}", format_limit(limits.low), format_limit(limits.high));
  std::string out;
  if (std::isfinite(limits.low)) out += (limits.low_open ? "above " : "at least ") + format_limit(limits.low);
  if (std::isfinite(limits.low) && std::isfinite(limits.high)) out += " and ";
  if (std::isfinite(limits.high)) out += (limits.high_open ? "below " : "at most ") + format_limit(limits.high);
  return out;
}

std::string check_number(const Limits& limits, double number) {
  const bool low_holds = limits.low_open ? number > limits.low : number >= limits.low;
  const bool high_holds = limits.high_open ? number < limits.high : number <= limits.high;
  if (low_holds && high_holds && std::isfinite(number)) return {};
  if (!std::isfinite(number)) return "must be a finite number";
  return "must be " + describe_limits(limits);
}

}  // namespace

std::string read_value(const Field& field, const YamlNode& node, void* value) {
  const bool may_be_empty = field.kind == FieldKind::text || field.kind == FieldKind::text_list ||
                            field.kind == FieldKind::integer_list || field.kind == FieldKind::number_list ||
                            field.kind == FieldKind::blend;
  if (node.kind == YamlNode::Kind::null && !may_be_empty)
    return fmt::format("no value is given; write {}", describe_type(field));
  switch (field.kind) {
    case FieldKind::boolean: return read_boolean(node, as<bool>(value));
    case FieldKind::integer: return read_integer(node, as<std::int64_t>(value));
    case FieldKind::number: return read_number(node, as<double>(value));
    case FieldKind::text: return read_text(node, as<std::string>(value));
    case FieldKind::text_list: return read_text_list(node, as<std::vector<std::string>>(value));
    case FieldKind::integer_list: return read_integer_list(node, as<std::vector<std::int64_t>>(value));
    case FieldKind::number_list: return read_number_list(node, as<std::vector<double>>(value));
    case FieldKind::blend: return read_blend(node, as<std::vector<BlendPart>>(value));
    case FieldKind::choice: return read_choice(field, node, value);
    case FieldKind::section: break;
  }
  return "a section is not a value";
}

std::string join_names(std::span<const std::string_view> names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += names[i];
  }
  return out;
}

std::string write_value(const Field& field, const void* value) {
  switch (field.kind) {
    case FieldKind::boolean: return as<bool>(value) ? "true" : "false";
    case FieldKind::integer: return fmt::format("{}", as<std::int64_t>(value));
    case FieldKind::number: return fmt::format("{}", as<double>(value));
    case FieldKind::text: return quote(as<std::string>(value));
    case FieldKind::text_list: return write_text_list(as<std::vector<std::string>>(value));
    case FieldKind::integer_list: return fmt::format("[{}]", joined(as<std::vector<std::int64_t>>(value), ", "));
    case FieldKind::number_list: return fmt::format("[{}]", joined(as<std::vector<double>>(value), ", "));
    case FieldKind::blend: return write_blend(as<std::vector<BlendPart>>(value));
    case FieldKind::choice: {
      const std::string_view name = field.choice->get(value);
      return name.empty() ? "null" : std::string(name);
    }
    case FieldKind::section: break;
  }
  return {};
}

std::string describe_type(const Field& field) {
  std::string limits = describe_limits(field.limits);
  if (!limits.empty()) limits.insert(0, ", ");
  switch (field.kind) {
    case FieldKind::boolean: return "true or false";
    case FieldKind::integer: return "whole number" + limits;
    case FieldKind::number: return "number" + limits;
    case FieldKind::text: return "text";
    case FieldKind::text_list: return "text or list of texts";
    case FieldKind::integer_list: return "list of whole numbers";
    case FieldKind::number_list: return "number or list of numbers" + limits;
    case FieldKind::blend: return "list of {prefix: text, weight: number}";
    case FieldKind::choice: return join_names(field.choice->names());
    case FieldKind::section: break;
  }
  return "section";
}

std::string check_limits(const Field& field, const void* value) {
  if (field.kind == FieldKind::text) return check_utf8(as<std::string>(value));
  if (field.kind == FieldKind::text_list)
    for (const std::string& text : as<std::vector<std::string>>(value))
      if (const std::string wrong = check_utf8(text); !wrong.empty()) return wrong;
  if (field.kind == FieldKind::blend)
    for (const BlendPart& part : as<std::vector<BlendPart>>(value))
      if (const std::string wrong = check_utf8(part.prefix); !wrong.empty()) return wrong;
  if (field.kind == FieldKind::number_list)
    for (const double number : as<std::vector<double>>(value))
      if (std::string wrong = check_number(field.limits, number); !wrong.empty()) return wrong;
  if (field.kind != FieldKind::integer && field.kind != FieldKind::number) return {};
  return check_number(field.limits, as_double(field, value));
}

}  // namespace tera
