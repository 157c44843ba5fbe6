#include "tera/tokenizer/sentencepiece/sentence_piece_model.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "tera/base/error.h"
#include "tera/base/utf8.h"

namespace tera {
namespace {

// Iterates over the fields of a protocol buffer message.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    std::uint64_t number = 0, value = 0;
    std::string_view bytes;  // a text or message, or a number of 4 bytes
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
      case 5: field.bytes = take(4); break;
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

// The table of replacements is a double array, which the library walks without bounds checks. Every node that a
// text can lead to must have its children, and every leaf its replacement, inside of the table.
bool is_sound(std::string_view map) {
  std::uint32_t size = 0;
  if (map.size() < sizeof(size)) return false;
  std::memcpy(&size, map.data(), sizeof(size));
  if (size < 1024 || size % 4 != 0 || size >= map.size() - sizeof(size)) return false;
  std::vector<std::uint32_t> units(size / 4);
  std::memcpy(units.data(), map.data() + sizeof(size), size);
  const std::size_t replacements = map.size() - sizeof(size) - size;
  if (map.back() != '\0') return false;
  const auto offset = [](std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & 0x200U) >> 6); };
  std::vector<bool> seen(units.size());
  std::vector<std::size_t> open = {0};
  seen[0] = true;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    const std::size_t base = node ^ offset(units[node]);
    if ((base | 255) >= units.size()) return false;
    if ((units[node] >> 8 & 1) && (units[base] & 0x7fffffffU) >= replacements) return false;
    for (std::size_t label = 1; label < 256; ++label) {
      const std::size_t child = base ^ label;
      if ((units[child] & 0x800000ffU) != label || seen[child]) continue;
      seen[child] = true;
      open.push_back(child);
    }
  }
  return true;
}

using Model = SentencePieceModel;

class FileReader {
 public:
  FileReader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  Model read() {
    FieldReader reader(bytes_);
    while (const auto field = reader.next()) {
      if (!field->has_bytes) continue;
      if (field->number == 1) read_piece(field->bytes);
      if (field->number == 2) read_trainer(field->bytes);
      if (field->number == 3) read_normalizer(field->bytes);
      if (field->number == 5) read_denormalizer(field->bytes);
    }
    if (reader.broken()) refuse("it is cut short or something else");
    if (model_.pieces.empty()) refuse("it has no pieces");
    return std::move(model_);
  }

 private:
  [[noreturn]] void refuse(std::string_view fault) const {
    fail_user("{} is no SentencePiece model: {}", where_, fault);
  }

  void read_piece(std::string_view message) {
    Model::Piece piece;
    FieldReader reader(message);
    while (const auto field = reader.next()) {
      if (field->number == 1) piece.text = field->bytes;
      if (field->number == 2 && field->bytes.size() == sizeof(float))
        std::memcpy(&piece.score, field->bytes.data(), sizeof(float));
      if (field->number == 3 && field->value >= 1 && field->value <= 6)
        piece.type = static_cast<Model::Type>(field->value);
    }
    const std::size_t id = model_.pieces.size();
    if (reader.broken()) refuse(fmt::format("piece {} is cut short", id));
    if (piece.text.empty()) refuse(fmt::format("piece {} is empty", id));
    if (valid_utf8_prefix(piece.text) != piece.text.size()) refuse(fmt::format("piece {} is no UTF-8", id));
    if (!std::isfinite(piece.score)) refuse(fmt::format("the score of piece {} is no number", id));
    model_.pieces.push_back(piece);
  }

  void read_trainer(std::string_view message) {
    FieldReader reader(message);
    while (const auto field = reader.next()) {
      if (field->number == 3 && field->value >= 1 && field->value <= 4)
        model_.kind = static_cast<Model::Kind>(field->value);
      if (field->number == 24) model_.space_behind = field->value != 0;
      if (field->number == 35) model_.byte_fallback = field->value != 0;
    }
    if (reader.broken()) refuse("its options of training are cut short");
  }

  void read_normalizer(std::string_view message) {
    FieldReader reader(message);
    while (const auto field = reader.next()) {
      if (field->number == 2 && field->has_bytes) model_.charsmap = checked(field->bytes);
      if (field->number == 3) model_.add_dummy_prefix = field->value != 0;
      if (field->number == 4) model_.remove_extra_whitespaces = field->value != 0;
      if (field->number == 5) model_.escape_whitespaces = field->value != 0;
    }
    if (reader.broken()) refuse("its rules of normalization are cut short");
  }

  void read_denormalizer(std::string_view message) {
    FieldReader reader(message);
    while (const auto field = reader.next())
      if (field->number == 2 && field->has_bytes) (void)checked(field->bytes);
    if (reader.broken()) refuse("its rules of denormalization are cut short");
  }

  std::string_view checked(std::string_view map) const {
    if (!map.empty() && !is_sound(map)) refuse("its table of replacements is broken");
    return map;
  }

  std::string_view bytes_;
  const std::string& where_;
  Model model_;
};

}  // namespace

SentencePieceModel read_sentence_piece_model(std::string_view bytes, const std::string& where) {
  return FileReader(bytes, where).read();
}

}  // namespace tera
