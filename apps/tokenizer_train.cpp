#include "apps/tokenizer_train.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/choice.h"
#include "apps/parent_folder.h"
#include "tera/base/cores.h"
#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/log.h"
#include "tera/base/signals.h"
#include "tera/base/utf8.h"
#include "tera/data/preprocess/jsonl_blocks.h"
#include "tera/data/preprocess/jsonl_line.h"
#include "tera/data/preprocess/text_files.h"
#include "tera/tokenizer/bpe/bpe_trainer.h"
#include "tera/tokenizer/huggingface/hugging_face.h"

namespace tera {
namespace {

enum class TrainPattern : std::uint8_t { gpt2, llama3 };
enum class InputFormat : std::uint8_t { by_itself, jsonl, text };

}  // namespace

template <>
struct EnumNames<TrainPattern> {
  static constexpr std::array values{std::pair{TrainPattern::gpt2, std::string_view("gpt2")},
                                     std::pair{TrainPattern::llama3, std::string_view("llama3")}};
};

template <>
struct EnumNames<InputFormat> {
  static constexpr std::array values{std::pair{InputFormat::by_itself, std::string_view("auto")},
                                     std::pair{InputFormat::jsonl, std::string_view("jsonl")},
                                     std::pair{InputFormat::text, std::string_view("text")}};
};

namespace {

struct TrainArguments {
  std::vector<std::string> inputs;
  std::string output, key = "text", pattern = "gpt2", format = "auto";
  bool skip_bad_lines = false;
  BpeTrainOptions options;
  int workers = usable_cores();
};

bool is_named_jsonl(std::string name) {
  for (const std::string_view packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".json");
}

// Whether the first line that is not blank is a JSON object.
bool looks_like_jsonl(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos || text[begin] != '{') return false;
  const std::string_view line = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  try {
    JsonlParser({}).parse(line);
    return valid_utf8_prefix(line) == line.size();
  } catch (const UserError&) {
    return false;
  }
}

struct FeedOptions {
  std::string key;  // JSONL field with the text
  InputFormat format = InputFormat::by_itself;
  bool skip_bad_lines = false;
};

// The texts of all files, one after the other: those of JSONL line by line, plain text in blocks of whole lines.
class TextFeed {
 public:
  TextFeed(std::vector<std::string> files, FeedOptions options, const StopRequest& stop)
      : files_(std::move(files)),
        options_(std::move(options)),
        parser_({options_.key}),
        reader_(files_, {}, stop.flag()) {}

  bool next(std::string& text) {
    while (texts_.empty()) {
      if (!reader_.next(block_)) return false;
      read_block();
    }
    text = std::move(texts_.front());
    texts_.pop_front();
    bytes_ += text.size();
    return true;
  }
  std::uint64_t bytes() const { return bytes_; }
  std::int64_t skipped() const { return skipped_; }

 private:
  void read_block() {
    if (block_.first) begin_file();
    if (block_.overlong) {
      ++line_;
      return bad_line("longer than 128 MiB");
    }
    if (!jsonl_ && valid_utf8_prefix(block_.text()) == block_.text().size()) {
      for_each_line(block_.text(), [&](std::string_view) { ++line_; });
      texts_.emplace_back(block_.text());
      return;
    }
    for_each_line(block_.text(), [&](std::string_view line) {
      ++line_;
      try {
        require_user(valid_utf8_prefix(line) == line.size(), "not UTF-8 text");
        if (!jsonl_) return texts_.emplace_back(line).push_back('\n');
        parser_.parse(line);
      } catch (const UserError& error) {
        return bad_line(error.what());
      }
      for (const std::string_view text : parser_.texts(0)) texts_.emplace_back(text);
    });
    parser_.trim();
  }

  // File names decide the format; for standard input and pipes, which have no name, the first line does.
  void begin_file() {
    const std::string& name = files_[block_.file];
    line_ = 0;
    jsonl_ = options_.format == InputFormat::jsonl;
    if (options_.format != InputFormat::by_itself) return;
    jsonl_ = is_named_jsonl(name);
    std::error_code ignored;
    if (jsonl_ || std::filesystem::is_regular_file(name, ignored)) return;
    jsonl_ = looks_like_jsonl(block_.text());
    fmt::print(stderr, "{} is taken as {}; --input-format can say otherwise\n", shown(name),
               jsonl_ ? fmt::format("JSONL with texts under \"{}\"", options_.key) : "plain text");
  }

  void bad_line(std::string_view reason) {
    constexpr std::int64_t max_reported = 10;
    const std::string message = fmt::format("{}, line {}: {}", shown(files_[block_.file]), line_, reason);
    require_user(options_.skip_bad_lines, "{}", message);
    if (++skipped_ <= max_reported) fmt::print(stderr, "skipped: {}\n", message);
  }
  static std::string_view shown(const std::string& name) {
    return name == CompressedInput::standard_input ? std::string_view("standard input") : name;
  }

  const std::vector<std::string> files_;
  const FeedOptions options_;
  JsonlParser parser_;
  BlockReader reader_;
  LineBlock block_;
  std::deque<std::string> texts_;
  std::uint64_t bytes_ = 0;
  std::int64_t line_ = 0, skipped_ = 0;
  bool jsonl_ = false;  // the current file
};

// Standard input is named -, also where it is a redirected file: the name must not decide the format.
std::vector<std::string> input_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::filesystem::path& file : find_text_files(inputs, "--input")) {
    const bool standard = file == "/dev/stdin" || file == "/dev/fd/0" || file == "/proc/self/fd/0";
    files.push_back(standard ? std::string(CompressedInput::standard_input) : file.string());
  }
  require_user(std::ranges::count(files, CompressedInput::standard_input) <= 1,
               "--input: standard input (-) can be read only once");
  return files;
}

void check(const TrainArguments& arguments) {
  const auto min_size = static_cast<std::int64_t>(256 + arguments.options.special_tokens.size());
  require_user(arguments.options.vocab_size >= min_size && arguments.options.vocab_size <= 10'000'000,
               "--vocab-size {}: from {} (the bytes and the special tokens) to 10000000", arguments.options.vocab_size,
               min_size);
  require_user(arguments.options.min_frequency >= 1, "--min-frequency {} is not at least 1",
               arguments.options.min_frequency);
  require_user(arguments.workers >= 1 && arguments.workers <= 1024, "--workers {}: from 1 to 1024", arguments.workers);
}

// A tokenizer.json does not say which token ends a document. Where that does not follow from the token's name,
// tokenizer_config.json beside it says so, as in Hugging Face folders.
void write_end_of_document(const TrainArguments& arguments, Log& log) {
  if (arguments.options.special_tokens.empty()) return;
  const auto made = HuggingFaceTokenizer::load(arguments.output, true);
  if (made->eod() == 0) return;
  const auto beside = std::filesystem::path(arguments.output).parent_path() / "tokenizer_config.json";
  require_user(!path_exists(beside),
               "{} is there already and says that another token ends documents than {}; write to "
               "a folder of its own",
               beside.string(), arguments.options.special_tokens[0]);
  const nlohmann::json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"eos_token", arguments.options.special_tokens[0]}};
  write_file_atomically(beside, config.dump(2) + "\n");
  log.info("{} says that {} ends documents", beside.string(), arguments.options.special_tokens[0]);
}

void check_output(const std::filesystem::path& output) {
  require_user(!std::filesystem::is_directory(output), "--output {} is a folder; name the file, tokenizer.json",
               output.string());
}

// Counts the words of all texts, unless the user asks to stop.
WordCounts count_words(TextFeed& feed, const BpeTrainOptions& options, FunctionRef<void()> go_on) {
  return count_words(options, [&](std::string& text) {
    go_on();
    try {
      return feed.next(text);
    } catch (const UserError&) {
      go_on();  // an interrupt ends the wait for input with a UserError
      throw;
    }
  });
}

void train(TrainArguments arguments) {
  StopRequest stop;  // before there are other threads
  const auto go_on = [&] {
    if (stop.asked()) throw Interrupted("interrupted; no tokenizer was written", stop.signal());
  };
  check(arguments);
  check_output(arguments.output);
  BpeTrainOptions& options = arguments.options;
  options.threads = static_cast<unsigned>(arguments.workers);
  options.pattern = parse_choice<TrainPattern>("--pattern", arguments.pattern) == TrainPattern::gpt2
                        ? SplitPattern::gpt2
                        : SplitPattern::llama3;
  Log log;
  TextFeed feed(input_files(arguments.inputs),
                {.key = arguments.key,
                 .format = parse_choice<InputFormat>("--input-format", arguments.format),
                 .skip_bad_lines = arguments.skip_bad_lines},
                stop);
  stop.collect();
  const WordCounts words = count_words(feed, options, go_on);
  if (feed.skipped() > 0) log.info("{} lines skipped", feed.skipped());
  require_user(words.size() > 0, "--input holds no text");
  log.info("{:.1f} MB of text, {} different words", static_cast<double>(feed.bytes()) / 1e6, words.size());
  const TrainedBpe trained = train_bpe(options, words, [&](std::int64_t) { go_on(); });
  go_on();
  make_parent_folder("--output", arguments.output);
  write_tokenizer_json(arguments.output, trained);
  write_end_of_document(arguments, log);
  if (std::ssize(trained.tokens) < options.vocab_size)
    log.info("no pair is left that occurs {} times: {} tokens instead of {}", options.min_frequency,
             trained.tokens.size(), options.vocab_size);
  log.info("{} tokens in {}", trained.tokens.size(), arguments.output);
}

}  // namespace

void add_tokenizer_train(Command parent) {
  auto arguments = std::make_shared<TrainArguments>();
  Command command = parent.add_subcommand("train", "a byte-level BPE from text, as a tokenizer.json");
  command
      .add_option("--input", arguments->inputs,
                  "text or JSONL; also .gz and .zst; files, folders and patterns, - for standard input")
      .required()
      .type_name("F ...");
  command
      .add_option("--input-format", arguments->format,
                  "jsonl, text, or auto: by the name, for - and pipes by the first line")
      .capture_default_str();
  command.add_flag("--skip-bad-lines", arguments->skip_bad_lines,
                   "leave out lines that cannot be read, and count them; without it the first is an error");
  command.add_option("--output", arguments->output, "the tokenizer.json to write").required().type_name("F");
  command.add_option("--vocab-size", arguments->options.vocab_size, "tokens, special ones and the 256 bytes included")
      .capture_default_str();
  command.add_option("--json-key", arguments->key, "of JSONL: whose text to learn from").capture_default_str();
  command.add_option("--pattern", arguments->pattern, "how text is cut into words: gpt2 or llama3")
      .capture_default_str();
  command.add_option("--min-frequency", arguments->options.min_frequency, "of a pair that may become a token")
      .capture_default_str();
  command
      .add_option("--special-tokens", arguments->options.special_tokens,
                  "the first ends documents; default <|endoftext|>")
      .type_name("NAME ...");
  command.add_option("--workers", arguments->workers, "threads; the result is always the same").capture_default_str();
  command.callback([arguments] { train(*arguments); });
}

}  // namespace tera
