// translate FROM TO: CUDA C++ that a compiler of C++ takes with -include tools/cuda_on_cpu/cuda_on_cpu.h.
//
//   kernel<int><<<grid, threads>>>(x)      becomes a call of cuda_on_cpu::launch
//   extern __shared__ uint4 memory[];      becomes a pointer to the block's dynamic shared memory
//
// Lines keep their numbers, so that messages name places of FROM.

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <string>
#include <string_view>

namespace {

// Where the comment or literal ends that begins at `i`, or i where none begins.
std::size_t end_of_text(const std::string& code, std::size_t i) {
  const auto after = [&code](std::string_view what, std::size_t from) {
    const std::size_t at = code.find(what, from);
    return at == std::string::npos ? code.size() : at + what.size();
  };
  if (code.compare(i, 2, "//") == 0) return after("\n", i) - 1;
  if (code.compare(i, 2, "/*") == 0) return after("*/", i + 2);
  const bool separates_digits = code[i] == '\'' && i > 0 && std::isalnum(static_cast<unsigned char>(code[i - 1]));
  if ((code[i] != '"' && code[i] != '\'') || separates_digits) return i;
  std::size_t end = i + 1;
  while (end < code.size() && code[end] != code[i]) end += code[end] == '\\' ? 2 : 1;
  return end + 1;
}

// The text with comments and literals blanked: what is looked for is then code.
std::string code_of(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    for (const std::size_t end = std::min(end_of_text(text, i), text.size()); i < end; ++i)
      if (text[i] != '\n') text[i] = ' ';
  return text;
}

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':'; }

// Where the kernel begins that is named before `end`, arguments of its template included.
std::size_t kernel_before(const std::string& code, std::size_t end) {
  std::size_t i = end;
  const auto skip_space = [&] {
    while (i > 0 && std::isspace(static_cast<unsigned char>(code[i - 1]))) --i;
  };
  skip_space();
  if (i > 0 && code[i - 1] == '>') {
    int depth = 0;
    do {
      --i;
      if (code[i] == '>') ++depth;
      if (code[i] == '<') --depth;
    } while (depth > 0 && i > 0);
    skip_space();
  }
  const std::size_t name_end = i;
  while (i > 0 && is_name(code[i - 1])) --i;
  if (i == name_end) throw std::runtime_error("<<< without the name of a kernel");
  return i;
}

std::string trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

std::string translate_launches(const std::string& text) {
  const std::string code = code_of(text);
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = code.find("<<<"); at != std::string::npos; at = code.find("<<<", at + 3)) {
    const std::size_t end = code.find(">>>", at);
    if (end == std::string::npos) throw std::runtime_error("<<< without >>>");
    const std::size_t begin = kernel_before(code, at);
    const std::string before = text.substr(begin, at - begin), kernel = trimmed(before);
    const bool is_template = kernel.find('<') != std::string::npos;
    out += text.substr(done, begin - done) + "::cuda_on_cpu::launch(::cuda_on_cpu::config(" +
           text.substr(at + 3, end - at - 3) + "), \"" + one_line(kernel) + "\", " + before.substr(kernel.size());
    out += is_template ? "[=](const auto&... cuda_args) { " + kernel + "(cuda_args...); })" : kernel + ")";
    done = end + 3;
  }
  return out + text.substr(done);
}

std::string translate_shared(const std::string& text) {
  static const std::regex declaration(R"(extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];)");
  return std::regex_replace(text, declaration,
                            "$1* const $2 = static_cast<$1*>(::cuda_on_cpu::dynamic_shared_memory());");
}

std::string read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: translate FROM TO\n", stderr);
    return 2;
  }
  try {
    const std::string text = translate_shared(translate_launches(read(argv[1])));
    std::ofstream to(argv[2], std::ios::binary);
    to << "#line 1 \"" << argv[1] << "\"\n" << text;
    if (!to.flush()) throw std::runtime_error("cannot be written");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "translate: %s: %s\n", argv[1], error.what());
    return 1;
  }
  return 0;
}
