// Fuzzes tokenizer.json: if it loads, it can encode and decode.

#include <string>
#include <vector>

#include "fuzz/fuzz_file.h"
#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/make_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tera;
  static const fuzz::FuzzFolder folder;
  const std::string path = folder.write("tokenizer.json", {bytes, size});
  try {
    const auto tokenizer = make_tokenizer({.type = TokenizerKind::hugging_face, .model = path});
    const auto encoder = tokenizer->make_encoder();
    std::vector<std::int32_t> ids;
    for (const char* text :
         {"", " ", "Hello world, it's 2024!\n\n  \t", "\u00e9\u4e2d\U0001f600\u200d", "<|endoftext|>a"})
      encoder->encode(text, ids);
    for (const std::int32_t id : ids) fuzz::must(id >= 0 && id < tokenizer->vocab_size());
    const std::string text = tokenizer->decode(ids);
    fuzz::must(valid_utf8_prefix(text) == text.size());
    tokenizer->decode(std::vector<std::int32_t>{-1, 0, 1 << 30, 5});
  } catch (const UserError&) {
  }
  return 0;
}
