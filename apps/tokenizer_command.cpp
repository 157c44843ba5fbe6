// tera tokenizer: text to ids and back, what a tokenizer is, and a new one from text.

#include <fmt/core.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands.h"
#include "apps/tokenizer_options.h"
#include "apps/tokenizer_train.h"
#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/tokenizer/json_lines.h"

namespace tera {
namespace {

constexpr std::size_t chunk = std::size_t{1} << 20;

// Passes each line of standard input to `convert`, which appends a line of output; writes in large blocks.
template <class Convert>
void convert_lines(Convert convert) {
  LineReader reader(STDIN_FILENO, "standard input");
  std::string out, reason;
  const auto flush = [&] {
    write_all(STDOUT_FILENO, out, "standard output");
    out.clear();
  };
  for (std::string_view line; reader.next(line);) {
    if (!convert(line, out, reason)) {
      flush();
      fail_user("{}, line {}: {}", reader.name(), reader.number(), reason);
    }
    out += '\n';
    if (out.size() >= chunk) flush();
  }
  flush();
}

void encode_lines(const Tokenizer& tokenizer) {
  const auto encoder = tokenizer.make_encoder();
  std::string scratch;
  std::vector<std::int32_t> ids;
  convert_lines([&](std::string_view line, std::string& out, std::string& reason) {
    std::string_view text;
    if (!read_json_text(line, scratch, text, reason)) return false;
    ids.clear();
    try {
      encoder->encode(text, ids);
    } catch (const UserError& error) {  // text that this tokenizer has no ids for
      reason = error.what();
      return false;
    }
    append_json_ids(ids, out);
    return true;
  });
}

void decode_lines(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  convert_lines([&](std::string_view line, std::string& out, std::string& reason) {
    if (!read_json_ids(line, ids, reason)) return false;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < tokenizer.vocab_size()) continue;
      reason = fmt::format("{} is no id of this tokenizer, whose vocabulary has {}", id, tokenizer.vocab_size());
      return false;
    }
    append_json_text(tokenizer.decode(ids), out);
    return true;
  });
}

void print_info(const TokenizerArguments& arguments) {
  const auto tokenizer = arguments.make();
  const auto id_or_null = [](std::int32_t id) {
    return id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(id);
  };
  const nlohmann::ordered_json info{{"tokenizer_type", name_of(arguments.options().type)},
                                    {"vocab_size", tokenizer->vocab_size()},
                                    {"eod", id_or_null(tokenizer->eod())},
                                    {"bos", id_or_null(tokenizer->bos())},
                                    {"pad", id_or_null(tokenizer->pad())},
                                    {"unk", id_or_null(tokenizer->unk())}};
  write_all(STDOUT_FILENO, info.dump() + "\n", "standard output");
}

std::shared_ptr<TokenizerArguments> add_arguments(Command command) {
  auto arguments = std::make_shared<TokenizerArguments>();
  arguments->add_to(command);
  return arguments;
}

}  // namespace

void add_tokenizer_command(Command app) {
  Command command = app.add_subcommand("tokenizer", "text to ids and back; what a tokenizer is; train one");
  command.require_subcommand();
  add_tokenizer_train(command);

  Command encode = command.add_subcommand("encode", "JSON strings on standard input, a line each, to lists of ids");
  encode.callback([arguments = add_arguments(encode)] { encode_lines(*arguments->make()); });

  Command decode = command.add_subcommand("decode", "lists of ids on standard input, a line each, to JSON strings");
  decode.callback([arguments = add_arguments(decode)] { decode_lines(*arguments->make()); });

  Command info = command.add_subcommand("info", "size of the vocabulary and special ids, as JSON");
  info.callback([arguments = add_arguments(info)] { print_info(*arguments); });
}

}  // namespace tera
