#pragma once
// What goes over a connection: frames of a kind and so many bytes. Nothing else is read from a socket, a length is
// looked at before there is memory for it, and what does not fit closes the connection.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tera/backend/nccl/socket.h"

namespace tera::nccl {

enum class FrameKind : std::uint8_t {
  // To rank 0, while ranks meet, and its answers.
  hello,
  welcome,
  refused,  // with the reason
  // To the hub.
  gather,  // a part of what a group gathers
  ask,     // who of these ranks has not come?
  fault,   // the sender has failed; its reason
  bye,     // the sender's work is over
  // From the hub.
  gathered,
  no_gather,  // the ranks do not agree; who called what
  answer,
  failed,  // a rank has, and why
  ended,   // all have left; what is yours to tell
  // Both ways: I am there. To the hub with what the rank does.
  beat
};

struct Frame {
  FrameKind kind{};
  std::vector<std::byte> payload;
};

// Puts numbers and text one after the other.
class Packer {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T> Packer& put(const T& value) {
    return put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  Packer& put_bytes(std::span<const std::byte> bytes);
  Packer& put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    return put_bytes(std::as_bytes(std::span(text)));
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Takes them out again; an Error where there are fewer bytes than that needs.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string get_text();
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> take(std::size_t bytes);
  std::span<const std::byte> rest_;
};

// A connection on which frames come and go without anybody waiting.
class Link {
 public:
  static constexpr std::size_t most_payload = std::size_t{1} << 20;    // of a rank
  static constexpr std::size_t most_gathered = std::size_t{64} << 20;  // of the hub, which tells what all have brought
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  Link() = default;
  Link(Socket socket, std::size_t largest_payload) : socket_(std::move(socket)), largest_(largest_payload) {}

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_ = Socket(); }
  bool overflowed() const { return overflowed_; }  // it was closed as the other end reads nothing
  void allow(std::size_t largest_payload) { largest_ = largest_payload; }

  void send(FrameKind kind, std::span<const std::byte> payload = {}) { send(make_frame(kind, payload)); }
  // One that goes over many links is kept once.
  static Bytes make_frame(FrameKind kind, std::span<const std::byte> payload);
  void send(Bytes frame);
  bool has_to_write() const { return !out_.empty(); }
  // Moves what can be moved. A connection that ended, or on which something else than frames came, is closed; frames
  // that came before can still be taken.
  void pump();
  std::optional<Frame> take();

 private:
  void write_some();
  void read_some();

  Socket socket_;
  bool overflowed_ = false;
  std::size_t largest_ = 0;
  std::deque<Bytes> out_;
  std::size_t unsent_ = 0, written_ = 0;  // of all, and of the first
  std::vector<std::byte> in_;
  std::size_t taken_ = 0;
};

// The next frame of a link, or none by the deadline or when it is closed.
std::optional<Frame> wait_for_frame(Link& link, Clock::time_point deadline);

}  // namespace tera::nccl
