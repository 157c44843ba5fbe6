#pragma once
// Puts a tokenizer together from what a file says.

#include "tera/tokenizer/hugging_face.h"
#include "tera/tokenizer/hugging_face_config.h"
#include "tera/tokenizer/hugging_face_file.h"

namespace tera {

// All of it, special ids not named yet.
TokenizerParts assemble_tokenizer(TokenizerFile file);

// The id of a token of the model or an added one; -1 if there is none.
std::int32_t id_of_token(const TokenizerParts& parts, std::string_view content);

// Gives tokens their ids, new ones behind all others, as `tokenizers` does; one that is there takes on the new flags.
void add_tokens(TokenizerParts& parts, std::span<const AddedToken> tokens);

// What transformers changes in a tokenizer when it has read the config.
void apply_config(TokenizerParts& parts, const SpecialTokensConfig& config);

// eod, bos, pad and unk from their names.
void name_special_ids(TokenizerParts& parts, const SpecialTokensConfig& config);

}  // namespace tera
