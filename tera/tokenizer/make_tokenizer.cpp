#include "tera/tokenizer/make_tokenizer.h"

#include "tera/base/error.h"
#include "tera/tokenizer/plain_tokenizers.h"

namespace tera {

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  switch (options.type) {
    case TokenizerKind::byte: return std::make_unique<ByteTokenizer>();
    case TokenizerKind::null: return std::make_unique<NullTokenizer>(options.vocab_size);
    default: break;
  }
  fail_user("tokenizers of type {} are not there yet", name_of(options.type));
}

std::vector<std::filesystem::path> tokenizer_files(const TokenizerOptions&) { return {}; }

}  // namespace tera
