// A main() for fuzz targets where there is no libFuzzer: replays a corpus, then mutates its inputs at random. If the
// code was compiled with -fsanitize-coverage=trace-pc, fuzzing is coverage-guided: inputs that reach new branches are
// added to the corpus.

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tera/base/hash.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size);

namespace tera::fuzz {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

constexpr std::size_t max_input = std::size_t{1} << 14;
constexpr unsigned seconds_for_one = 20;

// Globals, because a signal handler and the coverage callback use them and have no arguments for them.
const Bytes* running_input = nullptr;
std::array<char, 64> crash_name{};
using BranchMap = std::array<std::uint8_t, 1 << 16>;  // indexed by a hash of the address
BranchMap branches{};                                 // branches that the current input reached
std::uint8_t* const first_branch = branches.data();

void save_and_end(int number) {
  const int file = ::open(crash_name.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (running_input != nullptr) static_cast<void>(::write(file, running_input->data(), running_input->size()) > 0);
  const char text[] = "\nfuzz: this input failed; it is in ";
  static_cast<void>(::write(STDERR_FILENO, text, sizeof(text) - 1) > 0);
  static_cast<void>(::write(STDERR_FILENO, crash_name.data(), std::strlen(crash_name.data())) > 0);
  static_cast<void>(::write(STDERR_FILENO, "\n", 1) > 0);
  std::signal(number, SIG_DFL);
  ::raise(number);
}

class Fuzzer {
 public:
  Fuzzer(std::uint64_t seed, std::string keep) : random_(seed), keep_(std::move(keep)) {}

  void load(const std::filesystem::path& path) {
    if (std::filesystem::is_directory(path)) {
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
      std::ranges::sort(files);  // the order of directory entries depends on the disk
      for (const auto& file : files) load(file);
      return;
    }
    std::ifstream in(path, std::ios::binary);
    Bytes input{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    run(input);
    corpus_.push_back(std::move(input));
  }

  void mutate_for(double seconds) {
    if (corpus_.empty()) corpus_.emplace_back();
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < end) {
      Bytes input = corpus_[draw(corpus_.size())];
      for (auto mutations = 1 + draw(4); mutations > 0; --mutations) mutate(input);
      if (input.size() > max_input) input.resize(max_input);
      run(input);
      if (reached_new_) keep(std::move(input));
    }
  }

  std::string summary() const {
    return fmt::format("{} inputs, {} in the corpus{}", runs_, corpus_.size(),
                       fmt::format(", {} branches", std::ranges::count(reached_, 1)));
  }

 private:
  std::size_t draw(std::size_t below) { return below == 0 ? 0 : static_cast<std::size_t>(random_() % below); }

  void run(const Bytes& input) {
    running_input = &input;
    branches.fill(0);
    ::alarm(seconds_for_one);
    LLVMFuzzerTestOneInput(input.data(), input.size());
    ::alarm(0);
    running_input = nullptr;
    reached_new_ = false;
    for (std::size_t i = 0; i < branches.size(); ++i) {
      if (branches[i] == 0 || reached_[i] != 0) continue;
      reached_[i] = 1;
      reached_new_ = true;
    }
    ++runs_;
  }

  void keep(Bytes input) {
    if (!keep_.empty()) {
      const std::string_view bytes(reinterpret_cast<const char*>(input.data()), input.size());
      std::ofstream(std::filesystem::path(keep_) / fmt::format("{:016x}", hash_text(bytes)), std::ios::binary) << bytes;
    }
    corpus_.push_back(std::move(input));
  }

  void mutate(Bytes& input) {
    const std::size_t at = draw(input.size() + 1), length = std::min(draw(16) + 1, input.size() - at);
    const auto position = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (draw(7)) {
      case 0:
        if (length > 0) input[at] ^= static_cast<std::uint8_t>(1 << draw(8));
        return;
      case 1:
        if (length > 0) input[at] = static_cast<std::uint8_t>(draw(256));
        return;
      case 2: input.insert(position, static_cast<std::uint8_t>(draw(256))); return;
      case 3: input.erase(position, position + static_cast<std::ptrdiff_t>(length)); return;
      case 4: put_number(input, at); return;
      case 5: {  // repeats a piece many times, for depth and length
        const Bytes piece(position, position + static_cast<std::ptrdiff_t>(length));
        for (auto times = std::size_t{1} << draw(10); times > 0 && input.size() < max_input; --times)
          input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
        return;
      }
      default: splice(input, at);
    }
  }

  // Overwrites bytes with a number near the limits of integer types, as counts and offsets have them.
  void put_number(Bytes& input, std::size_t at) {
    constexpr std::array<std::uint64_t, 12> edges{0,          1,          2,          0x7f,  0xff,       0x7fff,
                                                  0xffffffff, 0x7fffffff, 0x80000000, ~0ULL, ~0ULL >> 1, 1ULL << 63};
    const std::uint64_t value = edges[draw(edges.size())] + draw(3) - 1;
    const std::size_t width = std::min(std::size_t{1} << draw(4), input.size() - at);
    if (width > 0) std::memcpy(input.data() + at, &value, width);
  }

  void splice(Bytes& input, std::size_t at) {
    const Bytes& other = corpus_[draw(corpus_.size())];
    const std::size_t begin = draw(other.size() + 1),
                      length = draw(std::min<std::size_t>(other.size() - begin, 64) + 1);
    const Bytes piece(other.begin() + static_cast<std::ptrdiff_t>(begin),
                      other.begin() + static_cast<std::ptrdiff_t>(begin + length));
    input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
  }

  std::mt19937_64 random_;
  std::string keep_;
  std::vector<Bytes> corpus_;
  std::uint64_t runs_ = 0;
  bool reached_new_ = false;
  BranchMap reached_{};  // branches that any input reached so far
};

int run_main(int argc, char** argv) {
  double seconds = 0;
  std::uint64_t seed = 1;
  std::string keep;
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--seconds")
      seconds = std::atof(next.c_str()), ++i;
    else if (word == "--seed")
      seed = std::strtoull(next.c_str(), nullptr, 10), ++i;
    else if (word == "--keep")
      keep = next, ++i;
    else
      paths.emplace_back(word);
  }
  const std::string program = std::filesystem::path(argv[0]).filename().string();
  std::ranges::copy(fmt::format("crash-{:.50}", program), crash_name.begin());
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(number, save_and_end);
  Fuzzer fuzzer(seed, keep);
  for (const auto& path : paths) fuzzer.load(path);
  fuzzer.mutate_for(seconds);
  fmt::print("{}: {}\n", program, fuzzer.summary());
  return 0;
}

}  // namespace
}  // namespace tera::fuzz

// The coverage callback, which instrumented code calls at every branch.
extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  *(tera::fuzz::first_branch + ((here ^ here >> 16) & 0xffff)) = 1;  // a call here would be a branch again
}

// Sanitizers end with a signal, whose handler saves the input.
extern "C" const char* __asan_default_options() { return "abort_on_error=1:detect_leaks=0"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1"; }

int main(int argc, char** argv) { return tera::fuzz::run_main(argc, argv); }
