#include "tera/tokenizer/plain_tokenizers.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/base/utf8.h"

namespace tera {

namespace {

class ByteEncoder final : public Encoder {
 public:
  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const std::size_t special = text.find_first_of(std::string_view("\0\1", 2));
    if (special != std::string_view::npos)
      fail_user("byte {} of the text is {}, which the byte tokenizer keeps for {}", special, int{text[special]},
                text[special] == 0 ? "the end of a document" : "padding");
    const std::size_t before = ids.size();
    ids.resize(before + text.size());
    std::ranges::transform(text, ids.begin() + static_cast<std::ptrdiff_t>(before),
                           [](char c) { return static_cast<std::int32_t>(static_cast<unsigned char>(c)); });
  }
};

class NullEncoder final : public Encoder {
 public:
  explicit NullEncoder(std::int64_t vocab_size) : vocab_size_(vocab_size) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    constexpr std::string_view blanks = " \t\r\n";
    while (true) {
      text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
      if (text.empty()) return;
      const std::string_view word = text.substr(0, text.find_first_of(blanks));
      std::int32_t id = -1;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      require_user(error == std::errc() && end == word.data() + word.size() && id >= 0 && id < vocab_size_,
                   "the null tokenizer reads ids from 0 to {} between spaces, not '{:.40}'", vocab_size_ - 1, word);
      ids.push_back(id);
      text.remove_prefix(word.size());
    }
  }

 private:
  std::int64_t vocab_size_;
};

}  // namespace

std::unique_ptr<Encoder> ByteTokenizer::make_encoder() const { return std::make_unique<ByteEncoder>(); }

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (id == eod() || id == pad()) continue;
    bytes += id >= 0 && id < 256 ? static_cast<char>(id) : '\xff';  // no UTF-8 text has this byte
  }
  return mend_utf8(bytes);
}

NullTokenizer::NullTokenizer(std::int64_t vocab_size) : vocab_size_(vocab_size) {
  require_user(vocab_size > 0 && vocab_size <= std::numeric_limits<std::int32_t>::max(),
               "the null tokenizer needs a vocabulary between 1 and 2147483647; model.vocab_size is {}", vocab_size);
}

std::unique_ptr<Encoder> NullTokenizer::make_encoder() const { return std::make_unique<NullEncoder>(vocab_size_); }

std::string NullTokenizer::decode(std::span<const std::int32_t> ids) const { return joined(ids, " "); }

}  // namespace tera
