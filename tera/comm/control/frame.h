#pragma once
// The wire format of a connection: frames of a kind, a length and so many bytes. Nothing else is read from a socket, a
// length is checked before memory is allocated for it, and a frame that is too long closes the connection.

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

#include "tera/comm/control/socket.h"

namespace tera::control {

enum class FrameKind : std::uint8_t {
  // The rendezvous: hello to rank 0, and its answers.
  hello,
  welcome,
  refused,  // carries the reason
  // To the coordinator.
  gather,    // the sender's part of a gather
  query,     // which of these ranks have not come?
  fault,     // the sender has failed; its reason
  bye,       // the sender's work is over
  reported,  // the sender has reported its lines of the end
  // From the coordinator.
  gathered,
  no_gather,  // the ranks made different calls, which the text names
  answer,
  failed,  // a rank has failed, and why
  ended,   // all have left, or some do not; whether the receiver kills the job; the lines that it reports
  // Both ways. To the coordinator with what the rank does.
  heartbeat
};

struct Frame {
  FrameKind kind{};
  std::span<const std::byte> payload;  // in the link's memory, until its next pump()
};

// Serializes numbers and text, one after the other.
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
  void clear() { bytes_.clear(); }  // memory is kept

 private:
  std::vector<std::byte> bytes_;
};

// Deserializes what a Packer wrote; an Error where there are too few bytes.
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

// A connection with non-blocking frames.
class Link {
 public:
  static constexpr std::size_t max_payload = std::size_t{1} << 20;    // from a rank
  static constexpr std::size_t max_gathered = std::size_t{64} << 20;  // from the coordinator, with all ranks' parts
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  Link() = default;
  Link(Socket socket, std::size_t largest_payload) : socket_(std::move(socket)), largest_(largest_payload) {}

  int descriptor() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_ = Socket(); }
  bool overflowed() const { return overflowed_; }  // it was closed because the other end does not read
  void allow(std::size_t largest_payload) { largest_ = largest_payload; }

  // Writes at once what the socket takes; a frame that it takes whole, as heartbeats are, needs no memory.
  void send(FrameKind kind, std::span<const std::byte> payload = {});
  // A frame that goes over many links is stored once.
  static Bytes make_frame(FrameKind kind, std::span<const std::byte> payload);
  void send(Bytes frame);
  bool has_to_write() const { return !out_.empty(); }
  // Sends and receives without blocking. A connection that ended, or on which something else than frames came, is
  // closed; frames that came before can still be taken.
  void pump();
  std::optional<Frame> take();

 private:
  std::size_t write_now(std::span<const std::byte> head, std::span<const std::byte> payload) const;
  void write_some();
  void read_some();

  Socket socket_;
  bool overflowed_ = false;
  std::size_t largest_ = 0;
  std::deque<Bytes> out_;
  std::size_t unsent_ = 0, written_ = 0;  // bytes of out_ that are unsent; bytes of its first frame that are sent
  std::vector<std::byte> in_;
  std::size_t taken_ = 0;
};

// The next frame of a link, or none by the deadline or when it is closed.
std::optional<Frame> wait_for_frame(Link& link, Clock::time_point deadline);

}  // namespace tera::control
