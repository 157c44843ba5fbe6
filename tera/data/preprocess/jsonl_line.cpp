#include "tera/data/preprocess/jsonl_line.h"

#include <fmt/core.h>

#include <bitset>
#include <cstdint>
#include <cstring>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

// The first of " and \ and control characters, which a string cannot hold; eight bytes at a time (SWAR). In each of the
// three tests a false positive can only come after a true one.
const char* find_special(const char* p, const char* end) {
  constexpr std::uint64_t ones = 0x0101010101010101, highs = 0x8080808080808080;
  for (; end - p >= 8; p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, sizeof(word));
    const std::uint64_t quote = word ^ (ones * '"'), slash = word ^ (ones * '\\');
    const std::uint64_t found =
        ((((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((word - ones * 0x20) & ~word)) & highs);
    if (found != 0) return p + __builtin_ctzll(found) / 8;
  }
  while (p < end && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20) ++p;
  return p;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_plain_escape(char c) {
  return c == 'n' || c == '"' || c == '\\' || c == '/' || c == 't' || c == 'r' || c == 'b' || c == 'f';
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// A cursor over a line that finds where it stops being JSON.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : begin_(text.data()), p_(begin_), end_(begin_ + text.size()) {}

  bool at_end() const { return p_ == end_; }
  char peek() const { return at_end() ? '\0' : *p_; }  // a zero byte is no JSON either
  void skip_blanks() {
    while (!at_end() && is_blank(*p_)) ++p_;
  }
  bool take(char c) {
    if (peek() != c || at_end()) return false;
    ++p_;
    return true;
  }
  std::string_view since(const char* begin) const { return {begin, static_cast<std::size_t>(p_ - begin)}; }
  const char* position() const { return p_; }

  std::string_view string();  // includes its quotes
  std::string_view value();   // a value of any kind, checked to its end
  std::string_view member();  // "key" and the colon after it; returns the key, with its quotes

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<std::type_identity_t<Args>...> format, const Args&... args) const {
    fail_user("no JSON at byte {}: {}", p_ - begin_ + 1, fmt::vformat(format, fmt::make_format_args(args...)));
  }

 private:
  using Levels = std::bitset<JsonlParser::max_depth + 1>;  // set: the level is an object

  void escape();
  void number();
  bool literal(std::string_view word);
  bool open(Levels& is_object, std::size_t& depth);
  bool close(const Levels& is_object, std::size_t& depth);

  const char *begin_, *p_, *end_;
};

void Cursor::escape() {
  ++p_;
  const char c = peek();
  if (c == 'u') {
    for (int i = 1; i <= 4; ++i)
      if (end_ - p_ <= i || hex_digit(p_[i]) < 0) refuse("\\u needs four hexadecimal digits");
    p_ += 5;
  } else if (is_plain_escape(c)) {
    ++p_;
  } else {
    refuse("\\ is not followed by one of \" \\ / b f n r t u");
  }
}

std::string_view Cursor::string() {
  const char* begin = p_;
  if (!take('"')) refuse("a string in double quotes is needed here");
  while (true) {
    p_ = find_special(p_, end_);
    if (at_end()) refuse("the string that begins at byte {} does not end", begin - begin_ + 1);
    if (*p_ == '\\') {
      escape();
    } else if (*p_ == '"') {
      ++p_;
      return since(begin);
    } else {
      refuse("a control character (0x{:02x}) in a string; it must be escaped", static_cast<unsigned char>(*p_));
    }
  }
}

bool Cursor::literal(std::string_view word) {
  if (!std::string_view(p_, static_cast<std::size_t>(end_ - p_)).starts_with(word)) return false;
  p_ += word.size();
  return true;
}

void Cursor::number() {
  const auto digits = [this] {
    const char* first = p_;
    while (is_digit(peek())) ++p_;
    return p_ > first;
  };
  take('-');
  if (literal("Infinity")) return;
  if (!take('0') && !digits()) refuse("a value is needed here");
  const char* integer_end = p_;
  if (take('.') && !digits()) p_ = integer_end;  // what follows is then found to be too much
  const char* fraction = p_;
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    if (!digits()) p_ = fraction;
  }
}

std::string_view Cursor::member() {
  skip_blanks();
  const std::string_view key = string();
  skip_blanks();
  if (!take(':')) refuse("a colon is needed after a key");
  return key;
}

// A list or an object begins here. Returns whether it has something in it, which then comes next.
bool Cursor::open(Levels& is_object, std::size_t& depth) {
  if (++depth > JsonlParser::max_depth) refuse("it is nested more than {} deep", JsonlParser::max_depth);
  const bool object = peek() == '{';
  is_object[depth] = object;
  ++p_;
  skip_blanks();
  if (take(object ? '}' : ']')) {
    --depth;
    return false;
  }
  if (object) member();
  return true;
}

// After a value: closes what ends here. Returns whether another value follows.
bool Cursor::close(const Levels& is_object, std::size_t& depth) {
  while (depth > 0) {
    skip_blanks();
    const bool object = is_object[depth];
    if (take(',')) {
      if (object) member();
      return true;
    }
    if (!take(object ? '}' : ']')) refuse("a comma or {} is needed here", object ? '}' : ']');
    --depth;
  }
  return false;
}

std::string_view Cursor::value() {
  Levels is_object;
  std::size_t depth = 0;
  skip_blanks();
  const char* begin = p_;
  do {
    skip_blanks();
    const char c = peek();
    if (c == '{' || c == '[') {
      if (open(is_object, depth)) continue;
    } else if (c == '"') {
      string();
    } else if (!literal("true") && !literal("false") && !literal("null") && !literal("NaN")) {
      number();
    }
    if (!close(is_object, depth)) break;
  } while (true);
  return since(begin);
}

std::uint32_t hex4(const char* p) {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i) code = code * 16 + static_cast<std::uint32_t>(hex_digit(p[i]));
  return code;
}

void append_utf8(std::uint32_t code, std::string& out) {
  const auto put = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  }
}

char plain_escape(char c) {
  switch (c) {
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return c;  // " \ /
  }
}

// Appends what an escaped string means. Returns half a surrogate pair that stands alone, or 0; it becomes three bytes
// that are no UTF-8. `text` was checked by the cursor.
std::uint32_t unescape(std::string_view text, std::string& out) {
  std::uint32_t lone = 0;
  while (true) {
    const std::size_t slash = text.find('\\');
    out += text.substr(0, slash);
    if (slash == text.npos) return lone;
    const char kind = text[slash + 1];
    text.remove_prefix(slash + 2);
    if (kind != 'u') {
      out += plain_escape(kind);
      continue;
    }
    std::uint32_t code = hex4(text.data());
    text.remove_prefix(4);
    if (code >= 0xd800 && code < 0xdc00 && text.starts_with("\\u")) {
      const std::uint32_t low = hex4(text.data() + 2);
      if (low >= 0xdc00 && low < 0xe000) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        text.remove_prefix(6);
      }
    }
    if (code >= 0xd800 && code < 0xe000) lone = code;
    append_utf8(code, out);
  }
}

std::string_view inside(std::string_view quoted) { return quoted.substr(1, quoted.size() - 2); }

std::string_view kind_of(std::string_view value) {
  switch (value.front()) {
    case '{': return "an object";
    case '[': return "a list";
    case '"': return "a string";
    case 't':
    case 'f': return "true or false";
    case 'n': return "null";
    default: return "a number";
  }
}

}  // namespace

JsonlParser::JsonlParser(std::vector<std::string> keys) : keys_(std::move(keys)), values_(keys_.size()) {}

void JsonlParser::note(std::string_view quoted_key, std::string_view source) {
  std::string_view key = inside(quoted_key);
  if (key.find('\\') != key.npos) {
    decoded_key_.clear();
    unescape(key, decoded_key_);
    key = decoded_key_;
  }
  for (std::size_t i = 0; i < keys_.size(); ++i)
    if (keys_[i] == key) values_[i].source = source;
}

void JsonlParser::parse(std::string_view line) {
  Cursor cursor(line);
  cursor.skip_blanks();
  require_user(!cursor.at_end(), "the line is blank; each line must be an object");
  require_user(!line.starts_with(byte_order_mark), "the line begins with a byte order mark, which JSON does not allow");
  if (!cursor.take('{')) fail_user("the line is no object");
  for (Value& value : values_) value.source = {};
  cursor.skip_blanks();
  while (cursor.peek() != '}') {
    const std::string_view key = cursor.member();
    note(key, cursor.value());
    cursor.skip_blanks();
    if (!cursor.take(',')) break;
    cursor.skip_blanks();
    if (cursor.peek() == '}') cursor.refuse("a key is needed after a comma");
  }
  if (!cursor.take('}')) cursor.refuse("a comma or }} is needed here");
  cursor.skip_blanks();
  if (!cursor.at_end()) cursor.refuse("something follows the object");

  trim();
  line_bytes_ = line.size();
  for (std::size_t i = 0; i < keys_.size(); ++i) take_texts(i);
}

std::string_view JsonlParser::text_of(std::size_t key, std::string_view quoted) {
  const std::string_view source = inside(quoted);
  if (std::memchr(source.data(), '\\', source.size()) == nullptr) return source;
  if (decoded_.empty()) decoded_.reserve(line_bytes_);  // no text is longer than its source, so texts stay in place
  const std::size_t begin = decoded_.size();
  if (const std::uint32_t lone = unescape(source, decoded_); lone != 0)
    fail_user("\"{}\" holds \\u{:04x}, half a surrogate pair without the other, which is no character", keys_[key],
              lone);
  return std::string_view(decoded_).substr(begin);
}

void JsonlParser::take_texts(std::size_t key) {
  Value& value = values_[key];
  if (value.source.empty()) fail_user("the key \"{}\" is missing", keys_[key]);
  value.first = texts_.size();
  const char kind = value.source.front();
  if (kind == '"') {
    texts_.push_back(text_of(key, value.source));
  } else if (kind == '[') {
    Cursor cursor(value.source);
    cursor.take('[');
    cursor.skip_blanks();
    while (cursor.peek() != ']') {
      const std::string_view element = cursor.value();
      if (element.front() != '"')
        fail_user("\"{}\" is a list with {} in it; a list must be of strings", keys_[key], kind_of(element));
      texts_.push_back(text_of(key, element));
      cursor.skip_blanks();
      cursor.take(',');
    }
  } else {
    fail_user("\"{}\" is {}; it must be a string, or a list of strings", keys_[key], kind_of(value.source));
  }
  value.count = texts_.size() - value.first;
}

void JsonlParser::trim() {
  for (Value& value : values_) value.count = 0;
  texts_.clear();
  if (texts_.capacity() * sizeof(texts_[0]) > kept_bytes) texts_.shrink_to_fit();
  for (std::string* buffer : {&decoded_, &decoded_key_}) {
    buffer->clear();
    if (buffer->capacity() > kept_bytes) buffer->shrink_to_fit();
  }
}

std::span<const std::string_view> JsonlParser::texts(std::size_t key) const {
  return std::span(texts_).subspan(values_[key].first, values_[key].count);
}

}  // namespace tera
