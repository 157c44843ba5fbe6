#pragma once
// Text to token ids and back.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

// Encodes texts one after the other for one thread: it holds the scratch space and the caches that make the next text
// faster. The ids of a text never depend on the texts before it.
class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;  // appends; text is valid UTF-8
};

// The immutable part of a tokenizer, shared by all threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::unique_ptr<Encoder> make_encoder() const = 0;                // must not outlive the tokenizer
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;  // always valid UTF-8
  virtual std::int64_t vocab_size() const = 0;                              // the largest id + 1
  // Negative where there is none.
  virtual std::int32_t eod() const = 0;  // ends a document
  virtual std::int32_t pad() const = 0;
  virtual std::int32_t bos() const { return -1; }
  virtual std::int32_t unk() const { return -1; }

  // For a single text; use an encoder for many.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const { make_encoder()->encode(text, ids); }
};

}  // namespace tera
