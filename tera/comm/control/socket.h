#pragma once
// TCP sockets between ranks. Every call has a deadline and does not block longer.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace tera::control {

using Clock = std::chrono::steady_clock;
inline double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// Listens at the first free port of [port, port + spare]; where the host is localhost, only for this machine. Port 0:
// any free port. A UserError names the ports where none is free.
struct Listener {
  Socket socket;
  int port = 0;
};
Listener listen_at(const std::string& host, int port, int spare);
// Accepts a connection without waiting; no socket: there is none.
struct Accepted {
  Socket socket;
  std::string from;     // its address, for messages
  std::string refusal;  // why a connection cannot be accepted now
};
Accepted accept_one(const Listener& listener);

// One attempt at each address of the host; empty when none answers, and then `why` has the reason of the last one.
Socket connect_once(const std::string& host, int port, Clock::time_point deadline, std::string& why);

// Two ends of one connection within this process.
std::pair<Socket, Socket> connected_pair();

// Waits until the descriptor can be read (or written); false: the deadline has passed.
bool wait_for(int descriptor, bool write, Clock::time_point deadline);

}  // namespace tera::control
