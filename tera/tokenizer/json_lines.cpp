#include "tera/tokenizer/json_lines.h"

#include <fmt/core.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "tera/base/error.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

constexpr std::size_t block = std::size_t{1} << 20;
constexpr std::size_t max_line = std::size_t{1} << 30;

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::optional<char32_t> read_hex4(std::string_view text) {
  unsigned value = 0;
  if (text.size() < 4) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + 4, value, 16);
  if (error != std::errc{} || end != text.data() + 4) return std::nullopt;
  return value;
}

// Unescapes a JSON string, given without its quotes.
class Unescaper {
 public:
  Unescaper(std::string_view text, std::string& out, std::string& reason) : rest_(text), out_(out), reason_(reason) {}

  bool run() {
    out_.clear();
    while (true) {
      const std::size_t escape = std::min(rest_.find('\\'), rest_.size());
      out_.append(rest_.substr(0, escape));
      rest_.remove_prefix(escape);
      if (rest_.empty()) return true;
      if (rest_.size() < 2) return fail("a lone \\ at its end");
      const char kind = rest_[1];
      rest_.remove_prefix(2);
      if (kind == 'u' ? !unicode() : !simple(kind)) return false;
    }
  }

 private:
  bool fail(std::string_view why) {
    reason_ = why;
    return false;
  }
  bool simple(char kind) {
    constexpr std::string_view kinds = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    const std::size_t at = kinds.find(kind);
    if (at == std::string_view::npos) return fail("an escape that JSON does not have");
    out_ += meanings[at];
    return true;
  }
  bool unicode() {
    auto code = read_hex4(rest_);
    if (!code) return fail("\\u without four hexadecimal digits");
    rest_.remove_prefix(4);
    if (*code >= 0xd800 && *code < 0xe000) {
      const auto low = *code < 0xdc00 && rest_.starts_with("\\u") ? read_hex4(rest_.substr(2)) : std::nullopt;
      if (!low || *low < 0xdc00 || *low >= 0xe000) return fail("half of a surrogate pair");
      rest_.remove_prefix(6);
      code = 0x10000 + ((*code - 0xd800) << 10) + (*low - 0xdc00);
    }
    append_utf8(out_, *code);
    return true;
  }

  std::string_view rest_;
  std::string& out_;
  std::string& reason_;
};

}  // namespace

bool LineReader::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    searched_ -= begin_;
    begin_ = 0;
  }
  require_user(end_ <= max_line, "{}:{}: a line of more than {} bytes", name_, number_ + 1, max_line);
  if (buffer_.size() < end_ + block) buffer_.resize(std::max(end_ + block, buffer_.size() * 2));
  while (true) {
    const ssize_t n = ::read(descriptor_, buffer_.data() + end_, buffer_.size() - end_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_user("cannot read {}: {}", name_, std::strerror(errno));
    at_end_ = n == 0;
    end_ += static_cast<std::size_t>(n);
    return n > 0;
  }
}

bool LineReader::next(std::string_view& line) {
  while (true) {
    const void* found = std::memchr(buffer_.data() + searched_, '\n', end_ - searched_);
    if (found != nullptr) {
      const auto at = static_cast<std::size_t>(static_cast<const char*>(found) - buffer_.data());
      line = std::string_view(buffer_).substr(begin_, at - begin_);
      begin_ = searched_ = at + 1;
      ++number_;
      return true;
    }
    searched_ = end_;
    if (at_end_ || !fill()) break;
  }
  if (begin_ == end_) return false;
  line = std::string_view(buffer_).substr(begin_, end_ - begin_);
  begin_ = searched_ = end_;
  ++number_;
  return true;
}

bool read_json_text(std::string_view line, std::string& scratch, std::string_view& text, std::string& reason) {
  line = trim(line);
  if (line.size() < 2 || line.front() != '"' || line.back() != '"') {
    reason = "not a JSON string";
    return false;
  }
  text = line.substr(1, line.size() - 2);
  bool escapes = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\\') {
      escapes = true;
      ++i;
    } else if (byte == '"' || byte < 0x20) {
      reason = byte == '"' ? "not one JSON string" : "a control character in a JSON string";
      return false;
    }
  }
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    reason = "invalid UTF-8";
    return false;
  }
  if (!escapes) return true;
  if (!Unescaper(text, scratch, reason).run()) return false;
  text = scratch;
  return true;
}

bool read_json_ids(std::string_view line, std::vector<std::int32_t>& ids, std::string& reason) {
  ids.clear();
  reason = "not a JSON list of token ids";
  line = trim(line);
  if (line.size() < 2 || line.front() != '[' || line.back() != ']') return false;
  std::string_view rest = trim(line.substr(1, line.size() - 2));
  while (!rest.empty()) {
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), id);
    if (error != std::errc{}) return false;
    ids.push_back(id);
    rest = trim(rest.substr(static_cast<std::size_t>(end - rest.data())));
    if (rest.empty()) return true;
    if (rest.front() != ',') return false;
    rest = trim(rest.substr(1));
    if (rest.empty()) return false;
  }
  return true;
}

void append_json_ids(std::span<const std::int32_t> ids, std::string& out) {
  constexpr std::size_t longest = 12;  // -2147483648 and a comma
  const std::size_t before = out.size();
  out.resize(before + ids.size() * longest + 2);
  char* to = out.data() + before;
  *to++ = '[';
  for (const std::int32_t id : ids) {
    to = std::to_chars(to, to + longest, id).ptr;
    *to++ = ',';
  }
  if (!ids.empty()) --to;
  *to++ = ']';
  out.resize(static_cast<std::size_t>(to - out.data()));
}

void append_json_text(std::string_view text, std::string& out) {
  out += '"';
  std::size_t done = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text.substr(done, i - done));
    done = i + 1;
    if (byte == '"' || byte == '\\')
      (out += '\\') += static_cast<char>(byte);
    else if (byte == '\n')
      out += "\\n";
    else
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
  }
  out.append(text.substr(done));
  out += '"';
}

}  // namespace tera
