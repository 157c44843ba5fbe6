#include "tera/comm/mpi/wire.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "tera/base/error.h"

namespace tera::mpi {
namespace {

// Capacities that suffice unless ranks run far ahead of each other; they grow then, and stay.
constexpr std::size_t expected_messages = 512, expected_requests = 4096;
constexpr std::size_t max_messages = 65'536;
constexpr int max_tags = 32'000;  // every MPI has 32,767

}  // namespace

Wire::Wire() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  require(provided >= MPI_THREAD_FUNNELED, "this MPI library does not allow a program to have threads");
  MPI_Comm_dup(MPI_COMM_WORLD, &messages_comm_);
  MPI_Comm_dup(MPI_COMM_WORLD, &bytes_comm_);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &here);
  MPI_Comm_size(here, &ranks_on_machine_);
  MPI_Comm_free(&here);
  requests_.reserve(expected_requests);
  pending_.reserve(expected_requests);
  completed_.resize(expected_requests);
  statuses_.resize(expected_requests);
  messages_.reserve(expected_messages);
  moved_.reserve(expected_requests);
  make_messages(expected_messages);
  const int waiting = std::clamp(8 * size_, 32, 256);  // posted receives for messages from any rank, several from each
  for (int i = 0; i < waiting; ++i) receive_message();
}

Wire::~Wire() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (pending_[i].what != What::message_in) continue;
    MPI_Cancel(&requests_[i]);
    MPI_Wait(&requests_[i], MPI_STATUS_IGNORE);
  }
  MPI_Finalize();
}

bool Wire::all_equal(std::uint64_t value) const {
  const std::array<std::uint64_t, 2> local{value, ~value};
  std::array<std::uint64_t, 2> largest{};
  MPI_Allreduce(local.data(), largest.data(), static_cast<int>(local.size()), MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
  return largest[0] == ~largest[1];
}

void Wire::broadcast(std::span<std::byte> bytes) const {
  MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
}

void Wire::kill_job(int status, bool launcher_kills) {
  if (!launcher_kills) MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

void Wire::make_messages(std::size_t count) {
  require(all_.size() < max_messages, "{} messages have come that rank {} has not asked for yet", all_.size(), rank_);
  for (std::size_t i = 0; i < count; ++i) free_.push_back(all_.emplace_back(std::make_unique<Message>()).get());
}

Message& Wire::take() {
  if (free_.empty()) make_messages(expected_messages);
  Message& message = *free_.back();
  free_.pop_back();
  message.header = {};
  return message;
}

void Wire::release(Message& message) { free_.push_back(&message); }

void Wire::add(MPI_Request request, const Pending& pending) {
  requests_.push_back(request);
  pending_.push_back(pending);
  if (requests_.size() <= completed_.size()) return;
  completed_.resize(requests_.capacity());
  statuses_.resize(requests_.capacity());
}

void Wire::send(int peer, Message& message, std::size_t payload_bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(&message, static_cast<int>(sizeof(Header) + payload_bytes), MPI_BYTE, peer, 0, messages_comm_, &request);
  add(request, {.what = What::message_out, .message = &message});
}

void Wire::receive_message() {
  Message& message = take();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&message, Message::size, MPI_BYTE, MPI_ANY_SOURCE, 0, messages_comm_, &request);
  add(request, {.what = What::message_in, .message = &message});
}

int Wire::next_tag() {
  tag_ = tag_ % max_tags + 1;
  return tag_;
}

void Wire::send_bytes(int peer, int tag, const std::byte* memory, const MovedPiece& piece) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(memory, static_cast<int>(piece.bytes), MPI_BYTE, peer, tag, bytes_comm_, &request);
  add(request, {.what = What::bytes_out, .moved = piece});
}

void Wire::receive_bytes(int peer, int tag, std::byte* memory, const MovedPiece& piece) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(memory, static_cast<int>(piece.bytes), MPI_BYTE, peer, tag, bytes_comm_, &request);
  add(request, {.what = What::bytes_in, .moved = piece});
}

bool Wire::poll() {
  messages_.clear();
  moved_.clear();
  int count = 0;
  MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, completed_.data(), statuses_.data());
  if (count <= 0) return false;  // none, or MPI_UNDEFINED
  for (int c = 0; c < count; ++c)
    complete(pending_[static_cast<std::size_t>(completed_[static_cast<std::size_t>(c)])],
             statuses_[static_cast<std::size_t>(c)]);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {  // in their old order
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    pending_[kept++] = pending_[i];
  }
  requests_.resize(kept);
  pending_.resize(kept);
  for (std::size_t i = 0; i < messages_.size(); ++i) receive_message();
  return true;
}

void Wire::complete(const Pending& pending, const MPI_Status& status) {
  switch (pending.what) {
    case What::message_out: release(*pending.message); return;
    case What::bytes_in:
    case What::bytes_out:
      if (pending.moved.lane != nullptr) moved_.push_back(pending.moved);
      return;
    case What::message_in: break;
  }
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  require(bytes >= static_cast<int>(sizeof(Header)), "a message of {} bytes from rank {}", bytes, status.MPI_SOURCE);
  pending.message->source = status.MPI_SOURCE;
  pending.message->payload_bytes = static_cast<std::size_t>(bytes) - sizeof(Header);
  messages_.push_back(pending.message);
}

void Wire::cancel_transfers() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    pending_[i].moved.lane = nullptr;
    if (pending_[i].what == What::bytes_in) MPI_Cancel(&requests_[i]);
  }
}

std::size_t Wire::bytes_in_flight() const {
  return static_cast<std::size_t>(std::count_if(pending_.begin(), pending_.end(), [](const Pending& p) {
    return p.what == What::bytes_in || p.what == What::bytes_out;
  }));
}

bool Wire::sends_in_flight() const {
  return std::any_of(pending_.begin(), pending_.end(), [](const Pending& p) { return p.what == What::message_out; });
}

}  // namespace tera::mpi
