#include "tera/checkpoint/safetensors_header.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "tera/base/error.h"

namespace tera {
namespace {

using nlohmann::json;

// SAX parser of the header: a malicious header is refused at its first wrong token and is never built up as a tree. A
// false return ends the parse; `problem` says why.
class HeaderParser final : public nlohmann::json_sax<json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool null() override { return refuse("a null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_float(double, const std::string& text) override { return refuse(fmt::format("the number {:.40}", text)); }
  bool number_integer(std::int64_t value) override { return refuse(fmt::format("the number {}", value)); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(std::uint64_t value) override {
    constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (state_ != State::list || value > max) return refuse(fmt::format("the number {}", value));
    if (field_ == "shape") {
      entry().shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (offsets_ == 2) return stop(fmt::format("tensor '{:.200}' has more than two data_offsets", entry().name));
    (offsets_++ == 0 ? entry().begin : entry().end) = value;
    return true;
  }

  bool string(std::string& text) override {
    if (state_ == State::metadata) {
      header.metadata[field_] = text;
      return true;
    }
    if (state_ != State::tensor || field_ != "dtype") return refuse("a string");
    entry().dtype_name = text;
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::start) {
      state_ = State::names;
    } else if (state_ == State::names) {
      fields_.clear();
      offsets_ = 0;
      state_ = name_ == "__metadata__" ? State::metadata : State::tensor;
      if (state_ == State::tensor) header.entries.emplace_back().name = name_;
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool key(std::string& text) override {
    if (state_ == State::names) {
      name_ = text;
      return names_.insert(text).second || stop(fmt::format("'{:.200}' occurs twice", text));
    }
    field_ = text;
    if (state_ == State::tensor && text != "dtype" && text != "shape" && text != "data_offsets")
      return stop(fmt::format("tensor '{:.200}' has the unknown field '{:.200}'", name_, text));
    return fields_.insert(text).second || stop(fmt::format("'{:.200}' has '{:.200}' twice", name_, text));
  }

  bool end_object() override {
    if (state_ == State::tensor && (fields_.size() != 3 || offsets_ != 2))
      return stop(fmt::format("tensor '{:.200}' lacks dtype, shape or one of two data_offsets", name_));
    state_ = state_ == State::names ? State::end : State::names;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::tensor || field_ == "dtype") return refuse("a list");
    state_ = State::list;
    return true;
  }

  bool end_array() override {
    state_ = State::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    return stop(fmt::format("not JSON at byte {}", position));
  }

 private:
  enum class State : std::uint8_t { start, names, tensor, metadata, list, end };

  SafetensorsEntry& entry() { return header.entries.back(); }

  bool stop(std::string why) {
    problem = std::move(why);
    return false;
  }
  bool refuse(std::string_view what) {
    return stop(
        fmt::format("{} where it does not belong{}", what, name_.empty() ? "" : fmt::format(" ('{:.200}')", name_)));
  }

  State state_ = State::start;
  std::string name_, field_;
  std::set<std::string> names_, fields_;
  int offsets_ = 0;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, const std::filesystem::path& path) {
  HeaderParser parser;
  const bool complete = json::sax_parse(text.begin(), text.end(), &parser);
  require_user(complete, "{}: bad safetensors header: {}", path.string(), parser.problem);
  return std::move(parser.header);
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json out;
  out["__metadata__"] = header.metadata;
  for (const SafetensorsEntry& entry : header.entries)
    out[entry.name] = {{"dtype", entry.dtype_name}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  return out.dump();
}

}  // namespace tera
