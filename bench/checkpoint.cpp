// How fast a checkpoint is written and read, against dd with direct I/O on the same disk, in turns; and how long an
// asynchronous save stops the step, against a copy of the same bytes.
//
//   checkpoint_bench FOLDER [MIB [ROUNDS]]

#include <fcntl.h>
#include <fmt/format.h>
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

// Forgets what the system has of a file in memory. Pages that a processor has just touched stay at first.
void forget(const fs::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::size_t bytes = fs::file_size(path);
  for (int turn = 0; turn < 200; ++turn) {
    static_cast<void>(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED));
    if (pages_in_memory(file, bytes) < bytes / 4096 / 100) return;
    ::usleep(10000);
  }
  fail_user("{}: the system keeps it in memory", path.string());
}

// The best of all rounds, in seconds.
struct Times {
  double dd_write = 1e9, save = 1e9, dd_read = 1e9, load = 1e9, load_unverified = 1e9, copy = 1e9, stop = 1e9;
};

class Bench {
 public:
  Bench(fs::path folder, std::int64_t mebibytes) : folder_(std::move(folder)), params_(DType::f32) {
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

  void round(Times& best) {
    const auto time = [](double& least, auto&& body) {
      const auto begin = Clock::now();
      body();
      least = std::min(least, seconds_since(begin));
    };
    const fs::path plain = folder_ / "plain", saved = folder_ / "saved";
    const std::uint64_t blocks = bytes_ >> 23;
    const auto write_plain = [&] {
      time(best.dd_write, [&] {
        shell(fmt::format("dd if=/dev/zero of={} bs=8M count={} oflag=direct conv=fsync", plain.string(), blocks));
      });
    };
    const auto read_plain = [&] {
      time(best.dd_read, [&] { shell(fmt::format("dd if={} of=/dev/null bs=8M iflag=direct", plain.string())); });
    };
    // Disks that are fast for a while and then slow serve best who comes first.
    const bool plain_first = round_++ % 2 == 0;
    if (plain_first) write_plain();
    time(best.save,
         [&] { save_checkpoint(saved, {.step = 1, .config_yaml = "x"}, params_, *backend_.ops, *backend_.device); });
    if (!plain_first) write_plain();
    if (plain_first) read_plain();
    load(best, time, saved);
    if (!plain_first) read_plain();
    asynchronous(best, time);
    fs::remove(plain);
    fs::remove_all(saved);
  }

  std::size_t bytes() const { return bytes_; }

 private:
  template <class Time>
  void load(Times& best, Time&& time, const fs::path& saved) {
    const fs::path file = saved / "step_00000001" / RankFile::name(0);
    for (double* least : {&best.load, &best.load_unverified}) {
      forget(file);
      time(*least, [&] {
        const Checkpoint checkpoint(saved);
        std::optional<VerifyShare> verified;
        if (least == &best.load) verified.emplace();
        checkpoint.load(ModelState(list_tensors(params_), params_), Checkpoint::Take::weights, *backend_.ops, verified);
      });
    }
  }

  template <class Time>
  void asynchronous(Times& best, Time&& time) {
    const std::unique_ptr<Comm> alone = make_self_comm(*backend_.ops);
    CheckpointWriter writer({.root = folder_ / "saved", .async = true},
                            {.world = *alone, .ops = *backend_.ops, .device = *backend_.device},
                            ModelState(list_tensors(params_), params_));
    for (std::int64_t step = 2; step < 4; ++step) {  // the first touches the memory of the copy
      double& least = step == 2 ? first_stop_ : best.stop;
      time(least, [&] { writer.save({.step = step, .config_yaml = "x"}); });
      writer.finish();
    }
    const Tensor from = params_.buckets()[0].weight;
    if (copy_.empty()) copy_ = backend_.device->allocate_host(from.bytes());
    for (int turn = 0; turn < 2; ++turn) time(best.copy, [&] { backend_.ops->to_host(from, copy_); });
  }

  fs::path folder_;
  Backend backend_ = make_backend({.device = DeviceChoice::cpu});
  ParamStore params_;
  std::size_t bytes_ = 0;
  double first_stop_ = 1e9;
  int round_ = 0;
  std::span<std::byte> copy_;
};

void print(const Times& best, std::size_t bytes) {
  const double size = static_cast<double>(bytes) / 1e9;
  fmt::print("{:.2f} GB, best of all rounds\n", size);
  const auto line = [&](const char* what, double seconds, double roof) {
    fmt::print("{:<44} {:>8.3f} s {:>8.2f} GB/s {:>6.0f} %\n", what, seconds, size / seconds, 100 * roof / seconds);
  };
  line("dd oflag=direct conv=fsync", best.dd_write, best.dd_write);
  line("save: written, synced and published", best.save, best.dd_write);
  line("dd iflag=direct", best.dd_read, best.dd_read);
  line("load, checksums compared, nothing cached", best.load, best.dd_read);
  line("load without checksums, nothing cached", best.load_unverified, best.dd_read);
  line("copy to the host", best.copy, best.copy);
  line("asynchronous save: the step stops for", best.stop, best.copy);
}

}  // namespace
}  // namespace tera

int main(int count, char** words) try {
  tera::require_user(count >= 2, "usage: checkpoint_bench FOLDER [MIB [ROUNDS]]");
  const std::filesystem::path folder = std::filesystem::path(words[1]) / "tera-checkpoint-bench";
  std::filesystem::create_directories(folder);
  tera::Bench bench(folder, count > 2 ? std::atoll(words[2]) : 1024);
  tera::Times best;
  for (int round = 0; round < (count > 3 ? std::atoi(words[3]) : 3); ++round) bench.round(best);
  tera::print(best, bench.bytes());
  std::filesystem::remove_all(folder);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
