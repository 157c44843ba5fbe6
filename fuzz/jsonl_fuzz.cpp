// Fuzzes JSONL: lines must not depend on the block size, and are parsed as another parser parses them.

#include <simdjson.h>

#include <atomic>
#include <string>
#include <vector>

#include "fuzz/fuzz_file.h"
#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/data/preprocess/jsonl_blocks.h"
#include "tera/data/preprocess/jsonl_line.h"

namespace tera::fuzz {
namespace {

constexpr std::size_t max_text = std::size_t{1} << 20;  // bounds decompression, as a few bytes can expand to any length

// The result of simdjson for a line: whether it is an object, and the last "text" if that is a string.
struct Reference {
  bool object = false, string = false;
  std::string text;
};

Reference read_with_simdjson(std::string_view line) {
  static simdjson::dom::parser parser;
  Reference found;
  simdjson::dom::object object;
  if (parser.parse(line.data(), line.size()).get(object) != simdjson::SUCCESS) return found;
  found.object = true;
  for (const auto field : object) {
    if (field.key != "text") continue;
    found.string = field.value.is_string();
    if (found.string) found.text = std::string_view(field.value);
  }
  return found;
}

void check_line(std::string_view line) {
  if (valid_utf8_prefix(line) != line.size()) return;
  const Reference reference = read_with_simdjson(line);
  static JsonlParser parser({"text", "other"}), text_parser({"text"});
  try {
    text_parser.parse(line);
    for (const std::string_view text : text_parser.texts(0)) must(valid_utf8_prefix(text) == text.size());
    if (reference.string) must(text_parser.texts(0).size() == 1 && text_parser.texts(0)[0] == reference.text);
  } catch (const UserError& error) {
    // A valid line may lack the key. simdjson may accept only one kind of line that we refuse: deeper nesting.
    const std::string_view message = error.what();
    const bool too_deep = message.find("deep") != message.npos;
    must(!reference.object || too_deep || (message.find("no JSON") == message.npos && !reference.string));
  }
  try {
    parser.parse(line);
  } catch (const UserError&) {
  }
}

std::vector<std::string> lines_of(const std::string& path, std::size_t block_bytes, std::size_t max_line_bytes) {
  const std::atomic<bool> stop = false;
  BlockReader reader({path}, {.block_bytes = block_bytes, .max_line_bytes = max_line_bytes}, stop);
  static LineBlock block;  // static to reuse its memory
  std::vector<std::string> lines;
  for (std::size_t text = 0; text < max_text && reader.next(block); text += block.text().size() + 1)
    for_each_line(block.text(), [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

}  // namespace
}  // namespace tera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tera;
  static const fuzz::FuzzFolder folder;
  if (size < 1) return 0;
  const std::string path = folder.write("lines", {bytes + 1, size - 1});
  try {
    const auto lines = fuzz::lines_of(path, 1 << 14, fuzz::max_text);
    for (const std::string& line : lines) fuzz::check_line(line);
    if (bytes[0] % 4 != 0) return 0;  // spends most of the time on single lines
    const auto again = fuzz::lines_of(path, std::size_t{1} + bytes[0], fuzz::max_text);
    std::size_t text = 0;
    for (const std::string& line : lines) text += line.size() + 2;
    fuzz::must(text >= fuzz::max_text || again == lines);
    fuzz::lines_of(path, std::size_t{1} + bytes[0], 20);
  } catch (const UserError&) {  // damaged compressed data
  }
  return 0;
}
