#include "tools/lint/rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <regex>
#include <utility>

#include "tools/lint/include_order.h"

namespace tera::lint {
namespace {

constexpr std::size_t max_columns = 120;

class Findings {
 public:
  explicit Findings(std::string path) : path_(std::move(path)) {}
  void add(std::size_t index, std::string message) { all_.push_back({path_, index + 1, std::move(message)}); }
  std::vector<Finding> take() { return std::move(all_); }

 private:
  std::string path_;
  std::vector<Finding> all_;
};

struct Include {
  std::string header;  // empty when the line is no include
  bool quoted = false;
};

// Parses the original line, because literals are blanked in `code`.
Include parse_include(const SourceFile& file, std::size_t index) {
  if (file.code[index].find('#') == std::string::npos) return {};
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::smatch match;
  if (!std::regex_search(file.lines[index], match, pattern)) return {};
  return {match[2].str(), match[1].str() == "\""};
}

void check_includes(const SourceFile& file, Findings& findings) {
  const bool in_library = file.path.starts_with("tera/");
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    const Include include = parse_include(file, i);
    if (include.header.empty()) continue;
    const std::string problem = in_library && include.quoted && !include.header.starts_with("tera/")
                                    ? "our own headers are named from the root, \"tera/...\""
                                    : include_problem(file.path, include.header);
    if (!problem.empty()) findings.add(i, fmt::format("includes {}: {}", include.header, problem));
  }
}

// The first line that is neither blank nor a comment must be the guard.
void check_guard(const SourceFile& file, Findings& findings) {
  if (!is_header(file.path)) return;
  const auto is_blank = [](const std::string& line) { return line.find_first_not_of(" \t") == std::string::npos; };
  const auto first = std::find_if_not(file.code.begin(), file.code.end(), is_blank);
  if (first != file.code.end() && first->starts_with("#pragma once")) return;
  findings.add(first == file.code.end() ? 0 : static_cast<std::size_t>(first - file.code.begin()),
               "a header starts with #pragma once");
}

void check_environment(const SourceFile& file, Findings& findings) {
  const std::string& path = file.path;
  if (path.starts_with("apps/") || path.starts_with("tests/") || path == "tera/train/launch.cpp" ||
      path == "tools/cuda_on_cpu/options.cpp")
    return;
  for (std::size_t i = 0; i < file.code.size(); ++i)
    if (uses(file.code[i], "getenv") || uses(file.code[i], "secure_getenv"))
      findings.add(i, "the environment is read in apps/ and tera/train/launch.cpp only; pass the value in");
}

void check_console(const SourceFile& file, Findings& findings) {
  if (!file.path.starts_with("tera/")) return;
  constexpr std::array<std::string_view, 5> console{"cout", "cerr", "clog", "printf", "puts"};
  for (std::size_t i = 0; i < file.code.size(); ++i)
    for (const std::string_view name : console)
      if (uses(file.code[i], name))
        findings.add(i, fmt::format("the library speaks through its log or returns text, not through {}", name));
}

// Characters, not bytes: continuation bytes of UTF-8 do not count.
std::size_t columns(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void check_columns(const SourceFile& file, Findings& findings) {
  for (std::size_t i = 0; i < file.lines.size(); ++i)
    if (const std::size_t wide = columns(file.lines[i]); wide > max_columns)
      findings.add(i, fmt::format("{} columns; {} is the limit", wide, max_columns));
}

// Where the comment of a line begins that ends with it; npos where there is none. Strings keep their closing quote in
// `code`.
std::size_t comment_begin(const SourceFile& file, std::size_t index) {
  const std::string &line = file.lines[index], &code = file.code[index];
  for (std::size_t at = line.find("//"); at != std::string::npos; at = line.find("//", at + 1))
    if (code.size() <= at || code.find_first_not_of(" \t", at) == std::string::npos) return at;
  return std::string::npos;
}

// A comment behind code, or the first line of a block, is a sentence or a noun phrase by itself: it is read without the
// lines above it. Later lines of a block are the rest of a sentence.
void check_comments(const SourceFile& file, Findings& findings) {
  static const std::regex continues(R"(^/{2,3} *(and|of|likewise|the same|also|else|so are|so is|but|or|with)\b)",
                                    std::regex::icase);
  bool in_block = false;
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    const std::size_t at = comment_begin(file, i);
    const bool alone = at != std::string::npos && file.lines[i].find_first_not_of(" \t") == at;
    if (at != std::string::npos && !(alone && in_block) && std::regex_search(file.lines[i].substr(at), continues))
      findings.add(i, "a comment stands on its own; this one continues what is above it");
    in_block = alone;
  }
}

struct OldWord {
  std::string_view word, standard;
};
// Words of our own that the field has others for. A word that ends in _ is a prefix.
constexpr std::array<OldWord, 24> old_words{{
    {"most_", "max_"},
    {"own_", "local_"},
    {"usual_", "default_ or expected_"},
    {"whole_", "full_ or global_"},
    {"ToldError", "AlreadyReported"},
    {"Carousel", "RingBuffer"},
    {"Seat", "RankHandle"},
    {"Hub", "Coordinator"},
    {"Meeting", "Rendezvous or RingStep"},
    {"DocumentDeal", "DynamicCpScheduler"},
    {"Dealer", "DynamicCpLoader"},
    {"RowsAhead", "MtpRows"},
    {"first_word", "vocab_start"},
    {"Flight", "MicrobatchState"},
    {"Parcel", "OffloadSlot"},
    {"Borders", "StageBoundary"},
    {"ParamWatch", "ParamHooks"},
    {"hand_out_weights", "all_gather_params"},
    {"Lever", "Knob"},
    {"StageWishes", "StageRequest"},
    {"TERA_PRODUCT", "TERA_WGMMA"},
    {"let_next_start", "pdl_trigger"},
    {"leave_sums", "store_partials"},
    {"InParts", "Phased"},
}};
constexpr std::array<std::string_view, 2> english{"most_likely", "most_frequent"};

void check_words(const SourceFile& file, Findings& findings) {
  static const std::regex identifier(R"([A-Za-z_]\w*)");
  for (std::size_t i = 0; i < file.code.size(); ++i) {
    const std::string& code = file.code[i];
    for (auto it = std::sregex_iterator(code.begin(), code.end(), identifier); it != std::sregex_iterator(); ++it) {
      const std::string name = it->str();
      for (const OldWord& old : old_words)
        if ((old.word.ends_with('_') ? name.starts_with(old.word) : name == old.word) &&
            std::ranges::find(english, name) == english.end())
          findings.add(i, fmt::format("{}: write {}", name, old.standard));
    }
  }
}

// What sets a family apart is in its ModelFamily; code elsewhere asks for that and not for the family.
void check_family_tests(const SourceFile& file, Findings& findings) {
  static const std::regex test(
      R"((family|arch)(->|\.)(name|hf_type|hf_class)(\.\w+\(| *[!=]= *"))"
      R"(|" *[!=]= *\w*\.?\w*(family|arch)(->|\.)(name|hf_|arch))"
      R"(|[!=]= *&?(\w+::)*(family_named\(|find_family\(|(family|v[0-9]|qwen[0-9])\b[^_(.-]))");
  if (!file.path.starts_with("tera/") || file.path.starts_with("tera/models/families/")) return;
  for (std::size_t i = 0; i < file.code.size(); ++i)
    if (std::regex_search(file.lines[i].substr(0, file.code[i].size()), test))
      findings.add(i, "a test for one family; make it a member of ModelFamily (tera/config/family.h)");
}

}  // namespace

bool is_header(std::string_view path) { return path.ends_with(".h") || path.ends_with(".cuh"); }

bool is_source(std::string_view path) { return is_header(path) || path.ends_with(".cpp") || path.ends_with(".cu"); }

std::vector<Finding> check_source(const SourceFile& file) {
  Findings findings(file.path);
  check_includes(file, findings);
  check_guard(file, findings);
  check_environment(file, findings);
  check_console(file, findings);
  check_columns(file, findings);
  check_comments(file, findings);
  check_words(file, findings);
  check_family_tests(file, findings);
  return findings.take();
}

std::vector<Finding> check_text(const SourceFile& file) {
  static const std::regex home(R"((^|[^\w./-])/(home|root|Users)/\w)");
  Findings findings(file.path);
  for (std::size_t i = 0; i < file.lines.size(); ++i)
    if (std::regex_search(file.lines[i], home)) findings.add(i, "a path into a home folder means nothing elsewhere");
  return findings.take();
}

}  // namespace tera::lint
