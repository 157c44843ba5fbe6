#include "tools/cuda_on_cpu/nccl_rendezvous.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "tools/cuda_on_cpu/nccl_error.h"

namespace cuda_on_cpu::nccl {
namespace {

// The contents of an ncclUniqueId.
struct IdContents {
  char magic[16];
  std::uint64_t token;
  std::int64_t process;
  int file;
};
constexpr char id_magic[sizeof(IdContents::magic)] = "nccl on cpu";
static_assert(sizeof(IdContents) <= sizeof(ncclUniqueId));

constexpr std::size_t head_bytes = (sizeof(RendezvousHead) + 4095) / 4096 * 4096;

std::size_t bytes_of(int ranks) {
  return head_bytes + static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks) * sizeof(Pipe);
}

[[noreturn]] void refuse_system(const std::string& what) {
  throw Refused{ncclSystemError, what + ": " + std::strerror(errno)};
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Files of ids that were made here, by token: each is closed once, though two ranks may be threads of this process.
class OpenFiles {
 public:
  void add(std::uint64_t token, int file) {
    const std::lock_guard lock(mutex_);
    files_[token] = file;
  }
  void close_one(std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(token);
    if (found == files_.end()) return;
    close(found->second);
    files_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, int> files_;
};

OpenFiles& open_files() {
  static OpenFiles files;
  return files;
}

}  // namespace

void wait_until(const std::function<bool()>& ready, const std::function<bool()>& gives_up) {
  constexpr auto pause = std::chrono::microseconds(200);
  while (!ready()) {
    if (gives_up()) throw Refused{ncclInternalError, "the communicator was aborted while ranks met"};
    std::this_thread::sleep_for(pause);
  }
}

ncclUniqueId make_id() {
  std::random_device random;
  IdContents contents{
      .magic = {}, .token = (std::uint64_t{random()} << 32) | random() | 1, .process = getpid(), .file = -1};
  std::memcpy(contents.magic, id_magic, sizeof(contents.magic));
  File file(memfd_create("nccl_on_cpu", MFD_CLOEXEC));
  if (file.get() < 0 || ftruncate(file.get(), head_bytes) != 0) refuse_system("no memory to meet in");
  if (pwrite(file.get(), &contents.token, sizeof(contents.token), offsetof(RendezvousHead, token)) !=
      sizeof(contents.token))
    refuse_system("no memory to meet in");
  contents.file = fcntl(file.get(), F_DUPFD_CLOEXEC, 3);
  if (contents.file < 0) refuse_system("no memory to meet in");
  open_files().add(contents.token, contents.file);
  ncclUniqueId id{};
  std::memcpy(&id, &contents, sizeof(contents));
  return id;
}

Rendezvous::Rendezvous(const ncclUniqueId& id, int rank, int ranks, const std::function<bool()>& gives_up)
    : ranks_(ranks), bytes_(bytes_of(ranks)) {
  if (ranks < 1 || ranks > max_ranks || rank < 0 || rank >= ranks)
    throw Refused{ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                                           ": ranks are numbered from 0, and there are at most " +
                                           std::to_string(max_ranks)};
  open(id);
  try {
    arrive(rank);
    wait_until([this] { return head().present.load(std::memory_order_acquire) == ranks_; }, gives_up);
  } catch (...) {
    munmap(memory_, bytes_);
    throw;
  }
  open_files().close_one(head().token);
}

Rendezvous::~Rendezvous() { munmap(memory_, bytes_); }

void Rendezvous::open(const ncclUniqueId& id) {
  IdContents contents;
  std::memcpy(&contents, &id, sizeof(contents));
  if (std::memcmp(contents.magic, id_magic, sizeof(contents.magic)) != 0)
    throw Refused{ncclInvalidArgument, "this is no id of ncclGetUniqueId"};
  const std::string path = "/proc/" + std::to_string(contents.process) + "/fd/" + std::to_string(contents.file);
  const File file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) refuse_system("the process that made the id is not there any more");
  std::uint64_t token = 0;
  if (pread(file.get(), &token, sizeof(token), offsetof(RendezvousHead, token)) != sizeof(token) ||
      token != contents.token)
    throw Refused{ncclSystemError, "the process that made the id is not there any more"};
  // Makes the file longer where it is shorter, and never the other way round.
  if (pwrite(file.get(), "", 1, static_cast<off_t>(bytes_ - 1)) != 1) refuse_system("no memory for what ranks send");
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory_ == MAP_FAILED) refuse_system("no memory for what ranks send");
}

void Rendezvous::arrive(int rank) {
  int others = 0;
  if (!head().ranks.compare_exchange_strong(others, ranks_) && others != ranks_)
    throw Refused{ncclInvalidArgument, "rank " + std::to_string(rank) + " comes as one of " + std::to_string(ranks_) +
                                           ", another as one of " + std::to_string(others)};
  if (head().here[rank].exchange(1) != 0)
    throw Refused{ncclInvalidArgument, "two ranks come as rank " + std::to_string(rank)};
  head().present.fetch_add(1, std::memory_order_acq_rel);
}

Pipe& Rendezvous::pipe(int from, int to) {
  auto* const pipes = reinterpret_cast<Pipe*>(static_cast<std::byte*>(memory_) + head_bytes);
  return pipes[from * ranks_ + to];
}

}  // namespace cuda_on_cpu::nccl
