#pragma once
// Tokenizers that need no vocabulary file.

#include "tera/tokenizer/tokenizer.h"

namespace tera {

// Ids are the bytes of UTF-8 text. Bytes 0 and 1, which do not occur in text, are end of document and padding; text
// that holds them is refused. The vocabulary is 512, a round size for models; ids from 256 up are unused and decode to
// U+FFFD, as do bytes that are not UTF-8. End of document and padding decode to nothing.
class ByteTokenizer final : public Tokenizer {
 public:
  std::unique_ptr<Encoder> make_encoder() const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return 512; }
  std::int32_t eod() const override { return 0; }
  std::int32_t pad() const override { return 1; }
};

// Text is ids written as decimal numbers between spaces. The last id ends a document; there is no padding.
class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(std::int64_t vocab_size);
  std::unique_ptr<Encoder> make_encoder() const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return vocab_size_; }
  std::int32_t eod() const override { return static_cast<std::int32_t>(vocab_size_ - 1); }
  std::int32_t pad() const override { return -1; }

 private:
  std::int64_t vocab_size_;
};

}  // namespace tera
