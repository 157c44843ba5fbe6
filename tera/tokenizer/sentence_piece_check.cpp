#include "tera/tokenizer/sentence_piece_check.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "tera/base/utf8.h"

namespace tera {
namespace {

// One field after the other of a protocol buffer.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    std::uint64_t number = 0, value = 0;
    std::string_view bytes;  // of a text or message
    bool has_bytes = false;
  };

  bool broken() const { return broken_; }

  std::optional<Field> next() {
    if (rest_.empty() || broken_) return {};
    const std::uint64_t key = varint();
    Field field;
    field.number = key >> 3;
    switch (key & 7) {
      case 0: field.value = varint(); break;
      case 1: (void)take(8); break;
      case 2:
        field.bytes = take(varint());
        field.has_bytes = true;
        break;
      case 5: (void)take(4); break;
      default: broken_ = true;
    }
    if (broken_) return {};
    return field;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 127U} << shift;
      if (byte < 128) return value;
    }
    broken_ = true;
    return 0;
  }

  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) {
      broken_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(static_cast<std::size_t>(size));
    return taken;
  }

  std::string_view rest_;
  bool broken_ = false;
};

// The table of replacements is a double array, which the library walks without looking where it gets. Every node that a
// text can lead to must have its children, and every leaf its replacement, inside of the table.
std::string charsmap_fault(std::string_view map) {
  constexpr std::string_view fault = "its table of replacements is broken";
  if (map.empty()) return {};
  std::uint32_t size = 0;
  if (map.size() < sizeof(size)) return std::string(fault);
  std::memcpy(&size, map.data(), sizeof(size));
  if (size < 1024 || size % 4 != 0 || size >= map.size() - sizeof(size)) return std::string(fault);
  std::vector<std::uint32_t> units(size / 4);
  std::memcpy(units.data(), map.data() + sizeof(size), size);
  const std::size_t replacements = map.size() - sizeof(size) - size;
  if (map.back() != '\0') return std::string(fault);
  const auto offset = [](std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & 0x200U) >> 6); };
  std::vector<bool> seen(units.size());
  std::vector<std::size_t> open = {0};
  seen[0] = true;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    const std::size_t base = node ^ offset(units[node]);
    if ((base | 255) >= units.size()) return std::string(fault);
    if ((units[node] >> 8 & 1) && (units[base] & 0x7fffffffU) >= replacements) return std::string(fault);
    for (std::size_t label = 1; label < 256; ++label) {
      const std::size_t child = base ^ label;
      if ((units[child] & 0x800000ffU) != label || seen[child]) continue;
      seen[child] = true;
      open.push_back(child);
    }
  }
  return {};
}

std::string piece_fault(std::string_view message, std::size_t index) {
  FieldReader reader(message);
  while (const auto field = reader.next())
    if (field->number == 1 && field->has_bytes && valid_utf8_prefix(field->bytes) != field->bytes.size())
      return fmt::format("piece {} is no UTF-8", index);
  return reader.broken() ? fmt::format("piece {} is cut short", index) : std::string();
}

std::string normalizer_fault(std::string_view message) {
  FieldReader reader(message);
  while (const auto field = reader.next())
    if (field->number == 2 && field->has_bytes)
      if (std::string fault = charsmap_fault(field->bytes); !fault.empty()) return fault;
  return reader.broken() ? "its rules of normalization are cut short" : "";
}

}  // namespace

std::string sentence_piece_fault(std::string_view bytes) {
  constexpr std::uint64_t pieces = 1, normalizer = 3, denormalizer = 5;
  FieldReader reader(bytes);
  std::size_t count = 0;
  while (const auto field = reader.next()) {
    std::string fault;
    if (field->number == pieces && field->has_bytes) fault = piece_fault(field->bytes, count++);
    if ((field->number == normalizer || field->number == denormalizer) && field->has_bytes)
      fault = normalizer_fault(field->bytes);
    if (!fault.empty()) return fault;
  }
  if (reader.broken()) return "the file is cut short or is something else";
  return count == 0 ? "it has no pieces" : "";
}

}  // namespace tera
