#include "tera/comm/nccl/nccl_world.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "tera/backend/cuda/runtime/cuda_error.h"

namespace tera::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto check_interval = 20ms;
constexpr auto max_check_gap = 1s;  // between checks; in a longer gap nobody waited, or the process was stopped
constexpr auto time_for_news = 3s;  // NCCL notices a broken connection, the coordinator knows of which rank

}  // namespace

NcclWorld::NcclWorld(Control& control, cuda::CudaOps& ops) : control_(control), ops_(ops) {
  watched_.reserve(64);
  ops_.guard_waits(this);
}

NcclWorld::~NcclWorld() { ops_.guard_waits(nullptr); }

void NcclWorld::note_calls(std::vector<TimedCall>* notes) {
  notes_ = notes;
  if (notes_ != nullptr) timing_events_.clear();
}

std::shared_ptr<Channel> NcclWorld::register_channel(ncclComm_t comm, std::vector<int> members) {
  auto channel = std::make_shared<Channel>(api_, comm, std::move(members));
  std::erase_if(channels_, [](const auto& known) { return known.expired(); });
  channels_.push_back(channel);
  return channel;
}

// The first rank makes the ncclUniqueId, and broadcasts it.
std::shared_ptr<Channel> NcclWorld::open_world(ControlGroup& world) {
  const Call call{.kind = CallKind::split};
  ncclUniqueId id{};
  if (world.rank == 0) {
    const ncclResult_t result = api_.unique_id(&id);
    if (result != ncclSuccess) fail_with(result, nullptr, "ncclGetUniqueId", call);
  }
  control_.broadcast_from_first(world, call, std::as_writable_bytes(std::span(&id, 1)));
  ncclComm_t comm = nullptr;
  const ncclResult_t result = api_.init(&comm, world.size(), id, world.rank);
  if (result != ncclSuccess) fail_with(result, nullptr, "ncclCommInitRank", call);
  return register_channel(comm, world.members);
}

std::shared_ptr<Channel> NcclWorld::open_part(ControlGroup& group, Channel& parent, const ControlGroup& part) {
  const Call call{.kind = CallKind::split};
  std::shared_ptr<Channel> known;
  for (const auto& weak : channels_)
    if (auto channel = weak.lock(); channel && channel.get() != &parent && channel->members() == part.members)
      known = std::move(channel);
  const bool is_new = !known && part.size() > 1;
  const auto needed = static_cast<std::uint8_t>(is_new);
  std::vector<std::uint8_t> all(group.members.size());
  control_.gather(group, call, std::as_bytes(std::span(&needed, 1)), std::as_writable_bytes(std::span(all)));
  if (std::count(all.begin(), all.end(), 1) == 0) return known;
  // The color of a part is the index of its first rank in the group.
  const auto first = std::find(group.members.begin(), group.members.end(), part.members.front());
  const int color = is_new ? static_cast<int>(first - group.members.begin()) : NCCL_SPLIT_NOCOLOR;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = api_.split(parent.comm(), color, part.rank, &comm, nullptr);
  if (result != ncclSuccess) fail_with(result, parent.comm(), group.name + ": ncclCommSplit", call);
  return is_new ? register_channel(comm, part.members) : known;
}

void NcclWorld::fail_with(ncclResult_t result, ncclComm_t comm, const std::string& where, const Call& call) {
  std::string text = fmt::format("{}: {}", where, api_.error_string(result));
  if (const char* more = api_.last_error(comm); more != nullptr && *more != 0) text += fmt::format(" ({})", more);
  if (control_.wait_for_failure(time_for_news)) {
    abort_all();
    control_.throw_failure(where, call);
  }
  abort_all();
  control_.give_up(fmt::format("{} on rank {}; NCCL_DEBUG=WARN tells more", text, control_.rank()));
}

void NcclWorld::check_nccl(ncclResult_t result, const Channel& channel, const ControlGroup& group, const Call& call) {
  if (result == ncclSuccess) return;
  fail_with(result, channel.comm(), fmt::format("{}: {}", group.name, to_string(call)), call);
}

void NcclWorld::check_alive(const ControlGroup& group, const Call& call) {
  if (!control_.failed()) return;
  abort_all();
  control_.throw_failure(group.name, call);
}

// All communicators at once, on threads: ncclCommAbort waits for the whole GPU when it frees memory, and so for calls
// of communicators that would be aborted later.
void NcclWorld::abort_all() noexcept {
  std::vector<std::shared_ptr<Channel>> open;
  for (const auto& weak : channels_)
    if (auto channel = weak.lock(); channel && !channel->aborted()) open.push_back(std::move(channel));
  std::vector<std::thread> threads;
  for (const auto& channel : open) threads.emplace_back([&channel] { channel->abort(); });
  for (std::thread& thread : threads) thread.join();
}

void NcclWorld::check() {
  if (!control_.failed() && Clock::now() < next_check_) return;
  check_channels();
  next_check_ = Clock::now() + check_interval;
}

void NcclWorld::check_channels() {
  if (const auto missed = Clock::now() - next_check_; missed > max_check_gap)
    for (Watched& watched : watched_) watched.since += missed;
  const Launched* waited_for = nullptr;
  for (const auto& weak : channels_) {
    const auto channel = weak.lock();
    if (!channel || channel->aborted()) continue;
    const std::uint64_t open = channel->first_unfinished();
    if (open == 0) continue;
    const Launched& launched = channel->launched(open);
    if (waited_for == nullptr) waited_for = &launched;
    if (const ncclResult_t error = channel->async_error(); error != ncclSuccess && !control_.failed())
      check_nccl(error, *channel, *launched.group, launched.call);
    const bool has_started = cudaEventQuery(launched.started) == cudaSuccess;
    cudaGetLastError();
    if (!has_started) continue;  // this rank's own inputs are not ready yet
    auto seen =
        std::find_if(watched_.begin(), watched_.end(), [&](const Watched& w) { return w.channel == channel.get(); });
    if (seen == watched_.end()) seen = watched_.insert(watched_.end(), {channel.get(), 0, {}});
    if (seen->call != open) *seen = {channel.get(), open, Clock::now()};
    if (Clock::now() - seen->since > control_.timeout() && !control_.failed()) give_up_waiting(launched);
  }
  if (!control_.failed()) return;
  const Call call = waited_for ? waited_for->call : Call{};
  const std::string group = waited_for ? waited_for->group->name : "world";
  abort_all();
  control_.throw_failure(group, call);
}

void NcclWorld::give_up_waiting(const Launched& launched) {
  const ControlGroup& group = *launched.group;
  const Call call = launched.call;
  const bool exchange = launched.peer_count > 0;
  const std::span<const int> peers(launched.peers.data(), launched.peer_count);
  control_.note_wait(group, call);
  const std::string who = control_.query_absent(group, exchange ? peers : std::span<const int>(group.members),
                                                exchange ? Control::any_call : launched.number);
  const double seconds = std::chrono::duration<double>(control_.timeout()).count();
  const std::string message =
      fmt::format("{}: {} on rank {} waited {:g} s: {}", group.name, to_string(call), control_.rank(), seconds, who);
  abort_all();
  if (control_.failed()) control_.throw_failure(group.name, call);
  control_.give_up(message);
}

void NcclWorld::wait(const Channel& channel, std::uint64_t id) {
  cuda::wait_on_host(channel.event_of(id), this, "a call between ranks");
}

}  // namespace tera::nccl
