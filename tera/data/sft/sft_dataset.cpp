#include "tera/data/sft/sft_dataset.h"

#include <fmt/core.h>
#include <simdjson.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "tera/base/error.h"
#include "tera/data/preprocess/compressed_input.h"
#include "tera/data/preprocess/jsonl_blocks.h"
#include "tera/data/preprocess/jsonl_line.h"

namespace tera {
namespace {

// Splits a chat format at {content}.
struct Frame {
  std::string_view before, after;
};

Frame frame_of(const std::string& format) {
  constexpr std::string_view content = "{content}";
  const std::size_t position = format.find(content);
  require(position != std::string::npos, "the format '{}' has no {{content}}", format);
  return {std::string_view(format).substr(0, position), std::string_view(format).substr(position + content.size())};
}

// Calls visit(file, number, line) for every line of all files; numbers are a file's own, from 1.
void for_each_line_of(const std::vector<std::string>& paths,
                      const std::function<void(const std::string&, std::int64_t, std::string_view)>& visit) {
  const std::atomic<bool> stop = false;
  const BlockReader::Options options;
  BlockReader reader(paths, options, stop);
  LineBlock block;
  std::int64_t number = 0;
  while (reader.next(block)) {
    const std::string& file = paths[block.file];
    if (block.first) number = 0;
    if (block.overlong)
      fail_user("{}:{}: the line is longer than {} bytes, the most that is read", file, number + 1,
                options.max_line_bytes);
    for_each_line(block.text(), [&](std::string_view line) { visit(file, ++number, line); });
  }
}

// All lines are read more than once, and by every rank: a pipe would be empty the second time.
void check_regular(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code ignored;  // a missing file is reported when it is opened
    const auto status = std::filesystem::status(path, ignored);
    const bool other = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
    require_user(path != CompressedInput::standard_input && !other,
                 "{}: not a regular file; dataset.kind=sft reads its files several times, and so not from a pipe",
                 path);
  }
}

// Errors of a line come from the reader of JSONL. It accepts some lines, as Python does, that are refused here.
[[noreturn]] void refuse(std::string_view line) {
  JsonlParser({}).parse(line);
  fail_user("a number that is none, infinite or too large, or half a surrogate pair, which cannot be read here");
}

// Turns the messages of one line into ids and marks.
class LineEncoder {
 public:
  LineEncoder(const SftDataset::Options& options, const Tokenizer& tokenizer)
      : system_(frame_of(options.format.system)),
        user_(frame_of(options.format.user)),
        assistant_(frame_of(options.format.assistant)),
        vocab_size_(options.vocab_size),
        encoder_(tokenizer.make_encoder()) {
    encoder_->encode("", ids_);
    require_user(
        ids_.empty(),
        "dataset.kind=sft: the tokenizer adds tokens to every text, and a conversation is many texts; set "
        "tokenizer.tokenizer_hf_no_include_special_tokens=true and write those tokens into dataset.chat_format");
  }

  void encode(std::string_view line) {
    ids_.clear();
    marks_.clear();
    simdjson::dom::element root;
    simdjson::dom::object object;
    padded_.assign(line);
    padded_.resize(line.size() + simdjson::SIMDJSON_PADDING);
    check_utf8(line);
    if (parser_.parse(padded_.data(), line.size(), false).get(root) != simdjson::SUCCESS) refuse(line);
    simdjson::dom::array messages;
    require_user(root.get(object) == simdjson::SUCCESS, "the line is no object");
    require_user(object["messages"].get(messages) == simdjson::SUCCESS, "messages: a list was expected");
    std::size_t number = 0;
    for (const simdjson::dom::element message : messages) add(message, number++);
    require_user(!ids_.empty(), "messages: there is nothing in them");
  }
  const std::vector<std::int32_t>& ids() const { return ids_; }
  const std::vector<std::uint8_t>& marks() const { return marks_; }

 private:
  void add(const simdjson::dom::element& message, std::size_t number) {
    const auto text_of = [&](std::string_view key) {
      std::string_view text;
      const bool found = message.is_object() && message[key].get(text) == simdjson::SUCCESS;
      if (!found) fail_user("messages[{}].{}: text was expected", number, key);
      return text;
    };
    const std::string_view role = text_of("role"), content = text_of("content");
    if (number == 0 || role == "system") begins_ = true;
    if (role == "assistant") {
      add_piece(assistant_.before, {}, {}, 0);
      add_piece({}, content, assistant_.after, Dataset::counts);
    } else if (role == "system" || role == "user") {
      const Frame& frame = role == "user" ? user_ : system_;
      add_piece(frame.before, content, frame.after, 0);
    } else {
      fail_user("messages[{}].role: '{}' is not system, user or assistant", number, role);
    }
  }

  void add_piece(std::string_view a, std::string_view b, std::string_view c, std::uint8_t mark) {
    piece_.assign(a);
    piece_.append(b);
    piece_.append(c);
    const std::size_t before = ids_.size();
    encoder_->encode(piece_, ids_);
    for (std::size_t i = before; i < ids_.size(); ++i)
      require_user(ids_[i] >= 0 && ids_[i] < vocab_size_, "the token id {} is not below model.vocab_size, which is {}",
                   ids_[i], vocab_size_);
    marks_.resize(ids_.size(), mark);
    if (!begins_ || ids_.size() == before) return;
    marks_[before] |= Dataset::begins;
    begins_ = false;
  }

  Frame system_, user_, assistant_;
  std::int64_t vocab_size_;
  std::unique_ptr<Encoder> encoder_;
  simdjson::dom::parser parser_;
  std::string padded_, piece_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> marks_;
  bool begins_ = false;  // the next token begins a conversation
};

}  // namespace

SftDataset::SftDataset(const Options& options, const Tokenizer& tokenizer) : begins_{0} {
  require(options.seq_length > 0, "a sequence of {} tokens cannot be read", options.seq_length);
  check_regular(options.paths);
  std::int64_t lines = 0;
  for_each_line_of(options.paths, [&](const std::string&, std::int64_t, std::string_view) { ++lines; });
  // Rounded to even, as Megatron-LM cuts splits.
  const auto first = static_cast<std::int64_t>(std::nearbyint(options.begin * static_cast<double>(lines)));
  const auto last = static_cast<std::int64_t>(std::nearbyint(options.end * static_cast<double>(lines)));
  LineEncoder encoder(options, tokenizer);
  std::int64_t position = 0;
  for_each_line_of(options.paths, [&](const std::string& file, std::int64_t number, std::string_view line) {
    const std::int64_t mine = position++;
    if (mine < first || mine >= last) return;
    try {
      encoder.encode(line);
    } catch (const UserError& error) {
      fail_user("{}:{}: {}", file, number, error.what());
    }
    // A full sequence has no target at its end, so the last token may be dropped.
    const auto kept = std::min(std::ssize(encoder.ids()), options.seq_length);
    ids_.insert(ids_.end(), encoder.ids().begin(), encoder.ids().begin() + kept);
    marks_.insert(marks_.end(), encoder.marks().begin(), encoder.marks().begin() + kept);
    const auto line_marks = std::span(marks_).last(static_cast<std::size_t>(kept));
    // The first token is no target.
    if (std::none_of(line_marks.begin() + 1, line_marks.end(), [](std::uint8_t mark) { return (mark & counts) != 0; }))
      ++without_target_;
    begins_.push_back(std::ssize(ids_));
  });
}

std::pair<std::size_t, std::size_t> SftDataset::range_of(std::int64_t index) const {
  require(index >= 0 && samples() > 0, "sample {} of {}", index, samples());
  const auto line = static_cast<std::size_t>(index % samples());
  return {static_cast<std::size_t>(begins_[line]), static_cast<std::size_t>(begins_[line + 1])};
}

void SftDataset::sample(std::int64_t index, std::span<std::int32_t> tokens) const {
  const auto [begin, end] = range_of(index);
  require(end - begin < tokens.size(), "sample {} has {} tokens, {} were asked for", index, end - begin, tokens.size());
  const auto rest = std::copy(ids_.begin() + static_cast<std::ptrdiff_t>(begin),
                              ids_.begin() + static_cast<std::ptrdiff_t>(end), tokens.begin());
  std::fill(rest, tokens.end(), -1);
}

void SftDataset::marks(std::int64_t index, std::span<std::uint8_t> marks) const {
  const auto [begin, end] = range_of(index);
  const auto rest = std::copy(marks_.begin() + static_cast<std::ptrdiff_t>(begin),
                              marks_.begin() + static_cast<std::ptrdiff_t>(end), marks.begin());
  std::fill(rest, marks.end(), std::uint8_t{0});
}

}  // namespace tera
