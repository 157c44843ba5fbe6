#pragma once
// Builds a tokenizer from its parsed file.

#include "tera/tokenizer/huggingface/hugging_face.h"
#include "tera/tokenizer/huggingface/hugging_face_config.h"
#include "tera/tokenizer/huggingface/hugging_face_file.h"

namespace tera {

// All parts; special ids are not resolved yet.
TokenizerParts assemble_tokenizer(TokenizerFile file);

// The id of a token of the model or an added one; -1 if there is none.
std::int32_t id_of_token(const TokenizerParts& parts, std::string_view content);

// Gives added tokens their ids, new ones after all others, as `tokenizers` does; an existing token gets the new flags.
void add_tokens(TokenizerParts& parts, std::span<const AddedToken> tokens);

// Applies the changes that transformers makes to a tokenizer after reading the config.
void apply_config(TokenizerParts& parts, const SpecialTokensConfig& config);

// Resolves eod, bos, pad and unk from their names.
void name_special_ids(TokenizerParts& parts, const SpecialTokensConfig& config);

}  // namespace tera
