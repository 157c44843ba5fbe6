#include "tera/comm/control/frame.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "tera/base/error.h"

namespace tera::control {
namespace {

// All ranks run on machines with the same order of bytes; others fail the test of the magic number.
struct Header {
  static constexpr std::uint32_t right_magic = 0x41524554;  // "TERA"
  std::uint32_t magic = right_magic;
  FrameKind kind{};
  std::uint8_t zero[3] = {};
  std::uint32_t bytes = 0;
};
static_assert(sizeof(Header) == 12);

Header header_of(FrameKind kind, std::span<const std::byte> payload) {
  require(payload.size() <= Link::max_gathered, "a frame of {} bytes", payload.size());
  return {.kind = kind, .bytes = static_cast<std::uint32_t>(payload.size())};
}

constexpr std::size_t max_unsent = std::size_t{64} << 20;  // a rank with more unsent bytes does not read

}  // namespace

Packer& Packer::put_bytes(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return *this;
}

std::span<const std::byte> Unpacker::take(std::size_t bytes) {
  require(bytes <= rest_.size(), "a frame ends {} bytes too early", bytes - rest_.size());
  const auto taken = rest_.first(bytes);
  rest_ = rest_.subspan(bytes);
  return taken;
}

std::string Unpacker::get_text() {
  const auto bytes = take(get<std::uint32_t>());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Link::Bytes Link::make_frame(FrameKind kind, std::span<const std::byte> payload) {
  const Header header = header_of(kind, payload);
  const auto head = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> frame;
  frame.reserve(head.size() + payload.size());
  frame.insert(frame.end(), head.begin(), head.end());
  frame.insert(frame.end(), payload.begin(), payload.end());
  return std::make_shared<const std::vector<std::byte>>(std::move(frame));
}

void Link::send(FrameKind kind, std::span<const std::byte> payload) {
  const Header header = header_of(kind, payload);
  const std::size_t written = open() && !has_to_write() ? write_now(std::as_bytes(std::span(&header, 1)), payload) : 0;
  if (written == sizeof(header) + payload.size()) return;
  send(make_frame(kind, payload));
  written_ += written;
  unsent_ -= std::min(written, unsent_);
}

// An error is found by the next pump().
std::size_t Link::write_now(std::span<const std::byte> head, std::span<const std::byte> payload) const {
  std::array<iovec, 2> pieces{iovec{const_cast<std::byte*>(head.data()), head.size()},
                              iovec{const_cast<std::byte*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return static_cast<std::size_t>(std::max<ssize_t>(0, ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL)));
}

void Link::send(Bytes frame) {
  if (!open()) return;
  if (unsent_ > max_unsent) {
    overflowed_ = true;
    return close();
  }
  unsent_ += frame->size();
  out_.push_back(std::move(frame));
}

void Link::pump() {
  if (open()) write_some();
  if (open()) read_some();
}

void Link::write_some() {
  while (has_to_write()) {
    const std::vector<std::byte>& first = *out_.front();
    const ssize_t sent = ::send(socket_.get(), first.data() + written_, first.size() - written_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) return close();
    written_ += static_cast<std::size_t>(sent);
    unsent_ -= static_cast<std::size_t>(sent);
    if (written_ < first.size()) continue;
    out_.pop_front();
    written_ = 0;
  }
}

void Link::read_some() {
  std::array<std::byte, 16384> some;
  if (taken_ > 0) {
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
  }
  while (in_.size() < largest_ + sizeof(Header)) {  // more is read when these frames have been taken
    const ssize_t got = ::recv(socket_.get(), some.data(), some.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return close();
    in_.insert(in_.end(), some.begin(), some.begin() + got);
  }
}

std::optional<Frame> Link::take() {
  Header header;
  if (in_.size() - taken_ < sizeof(header)) return std::nullopt;
  std::memcpy(&header, in_.data() + taken_, sizeof(header));
  if (header.magic != Header::right_magic || header.bytes > largest_ || header.kind > FrameKind::heartbeat) {
    close();
    in_.clear();
    taken_ = 0;
    return std::nullopt;
  }
  if (in_.size() - taken_ < sizeof(header) + header.bytes) return std::nullopt;
  const Frame frame{header.kind, std::span(in_).subspan(taken_ + sizeof(header), header.bytes)};
  taken_ += sizeof(header) + header.bytes;
  return frame;
}

std::optional<Frame> wait_for_frame(Link& link, Clock::time_point deadline) {
  for (;;) {
    link.pump();
    if (std::optional<Frame> frame = link.take()) return frame;
    if (!link.open() || Clock::now() >= deadline) return std::nullopt;
    const auto soon = std::min(deadline, Clock::now() + std::chrono::milliseconds(100));
    wait_for(link.descriptor(), link.has_to_write(), soon);
  }
}

}  // namespace tera::control
