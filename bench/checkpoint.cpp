// How fast a checkpoint is written and read, against dd with direct I/O on the same disk, interleaved; and how long an
// asynchronous save blocks the step, against a copy of the same bytes.
//
//   checkpoint_bench FOLDER [MIB [ROUNDS [cpu|cuda]]]

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/checkpoint_writer.h"
#include "tera/train/backend.h"

namespace tera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void shell(const std::string& command) {
  require_user(std::system((command + " 2>/dev/null").c_str()) == 0, "failed: {}", command);
}

std::size_t pages_in_memory(const FileDescriptor& file, std::size_t bytes) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  require_user(mapped != MAP_FAILED, "cannot map the file");
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  const int failed = ::mincore(mapped, bytes, pages.data());
  ::munmap(mapped, bytes);
  require_user(failed == 0, "cannot tell what of the file is in memory");
  return static_cast<std::size_t>(std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }));
}

// Drops a file from the page cache. Pages that a processor has just touched stay at first, so it tries again.
void drop_from_page_cache(const fs::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::size_t bytes = fs::file_size(path);
  for (int attempt = 0; attempt < 200; ++attempt) {
    static_cast<void>(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED));
    if (pages_in_memory(file, bytes) < bytes / 4096 / 100) return;
    ::usleep(10000);
  }
  fail_user("{}: the system keeps it in memory", path.string());
}

// Seconds of one operation in each round.
class Timings {
 public:
  template <class Body>
  void time(Body&& body) {
    const auto begin = Clock::now();
    body();
    seconds_.push_back(seconds_since(begin));
  }
  double best() const { return *std::ranges::min_element(seconds_); }
  double median() const {
    std::vector<double> sorted = seconds_;
    std::ranges::sort(sorted);
    const std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }

 private:
  std::vector<double> seconds_;
};

struct Times {
  Timings dd_write, save, dd_read, load, load_unverified, copy, stop;
};

class Bench {
 public:
  Bench(const fs::path& folder, std::int64_t mebibytes, DeviceChoice device)
      : plain_(folder / "plain"),
        saved_(folder / "saved"),
        backend_(make_backend({.device = device})),
        params_(DType::f32) {
    constexpr std::int64_t columns = 4096, rows = 4096;  // 64 MiB each
    for (std::int64_t i = 0; i * 64 < mebibytes; ++i) {
      const std::string name = fmt::format("weight{:03d}", i);
      params_.add({.name = name,
                   .shape = shape(rows, columns),
                   .parts = {{.name = name, .global = shape(rows, columns)}},
                   .init = {.kind = Init::Kind::normal, .std = 1}});
    }
    params_.lay_out();
    Arena measured = Arena::measuring(), constants = Arena::measuring();
    params_.bind({measured, constants});
    bytes_ = measured.peak();
    Arena real(backend_.device->allocate(bytes_));
    params_.bind({real, constants});
    params_.initialize(*backend_.ops, 1);
  }

  // A disk that is fast at first and then throttles favours whoever comes first: dd and tera alternate in coming first,
  // and writing and reading are measured apart.
  void run(Times& times, int rounds) {
    for (int round = 0; round < rounds; ++round)
      alternate(
          round, [&] { write_plain(times.dd_write); }, [&] { save(times.save); });
    for (int round = 0; round < rounds; ++round)
      alternate(
          round, [&] { read_plain(times.dd_read); }, [&] { load(times.load, VerifyShard{}); });
    for (int round = 0; round < rounds; ++round) load(times.load_unverified, std::nullopt);
    fs::remove(plain_);
    asynchronous(times, rounds);
    fs::remove_all(saved_);
  }

  std::size_t bytes() const { return bytes_; }

 private:
  template <class First, class Second>
  static void alternate(int round, First&& first, Second&& second) {
    if (round % 2 == 0) first();
    second();
    if (round % 2 != 0) first();
  }

  void write_plain(Timings& timings) {
    fs::remove(plain_);
    timings.time([&] {
      shell(fmt::format("dd if=/dev/zero of={} bs=8M count={} oflag=direct conv=fsync", plain_.string(), bytes_ >> 23));
    });
  }

  void read_plain(Timings& timings) {
    timings.time([&] { shell(fmt::format("dd if={} of=/dev/null bs=8M iflag=direct", plain_.string())); });
  }

  void save(Timings& timings) {
    fs::remove_all(saved_);
    timings.time(
        [&] { save_checkpoint(saved_, {.step = 1, .config_yaml = "x"}, params_, *backend_.ops, *backend_.device); });
  }

  void load(Timings& timings, const std::optional<VerifyShard>& verified) {
    drop_from_page_cache(saved_ / "step_00000001" / RankFile::name(0));
    timings.time([&] {
      Checkpoint(saved_).load(ModelState(list_tensors(params_), params_), Checkpoint::Take::weights, *backend_.ops,
                              verified);
    });
  }

  void asynchronous(Times& times, int rounds) {
    const std::unique_ptr<Comm> alone = make_self_comm(*backend_.ops);
    CheckpointWriter writer({.root = saved_, .async = true},
                            {.world = *alone, .ops = *backend_.ops, .device = *backend_.device},
                            ModelState(list_tensors(params_), params_));
    const Tensor from = params_.buckets()[0].weight;
    const std::span<std::byte> to = backend_.device->allocate_host(from.bytes());
    Timings untimed;  // the first round touches the memory of the copies
    for (int round = 0; round <= rounds; ++round) {
      (round == 0 ? untimed : times.stop).time([&] { writer.save({.step = round + 2, .config_yaml = "x"}); });
      writer.finish();
      (round == 0 ? untimed : times.copy).time([&] { backend_.ops->to_host(from, to); });
    }
  }

  fs::path plain_, saved_;
  Backend backend_;
  ParamStore params_;
  std::size_t bytes_ = 0;
};

void print(const Times& times, std::size_t bytes) {
  const double size = static_cast<double>(bytes) / 1e9;
  fmt::print("{:.2f} GB {:>55} {:>31}\n", size, "median", "best");
  const auto line = [&](const char* what, const Timings& timings, const Timings& roof) {
    fmt::print("{:<42}", what);
    for (const auto& [seconds, limit] : {std::pair{timings.median(), roof.median()}, {timings.best(), roof.best()}})
      fmt::print(" {:>8.3f} s {:>6.2f} GB/s {:>5.0f} %", seconds, size / seconds, 100 * limit / seconds);
    fmt::print("\n");
  };
  line("dd oflag=direct conv=fsync", times.dd_write, times.dd_write);
  line("save: written, synced and published", times.save, times.dd_write);
  line("dd iflag=direct", times.dd_read, times.dd_read);
  line("load, checksums compared, nothing cached", times.load, times.dd_read);
  line("load without checksums, nothing cached", times.load_unverified, times.dd_read);
  line("copy to the host", times.copy, times.copy);
  line("asynchronous save: the step stops for", times.stop, times.copy);
}

}  // namespace
}  // namespace tera

int main(int count, char** words) try {
  tera::require_user(count >= 2, "usage: checkpoint_bench FOLDER [MIB [ROUNDS [cpu|cuda]]]");
  const std::filesystem::path folder = std::filesystem::path(words[1]) / "tera-checkpoint-bench";
  std::filesystem::create_directories(folder);
  const bool cuda = count > 4 && std::string_view(words[4]) == "cuda";
  tera::Bench bench(folder, count > 2 ? std::atoll(words[2]) : 1024,
                    cuda ? tera::DeviceChoice::cuda : tera::DeviceChoice::cpu);
  tera::Times times;
  bench.run(times, count > 3 ? std::max(std::atoi(words[3]), 1) : 5);
  tera::print(times, bench.bytes());
  std::filesystem::remove_all(folder);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
