#pragma once
// TCP between ranks. Everything has a deadline, and nothing here blocks longer.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace tera::nccl {

using Clock = std::chrono::steady_clock;
inline double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

// Owns a descriptor.
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

// Listens at the first port of [port, port + spare] that is free: where the host names this machine alone (localhost),
// only for this machine. Port 0: any. A UserError names the ports where none can be had.
struct Listener {
  Socket socket;
  int port = 0;
};
Listener listen_at(const std::string& host, int port, int spare);
// One that has come, without waiting; no socket: none has.
struct Accepted {
  Socket socket;
  std::string from;     // its address, for messages
  std::string refusal;  // why one that has come cannot be taken now
};
Accepted accept_one(const Listener& listener);

// One attempt at each address of the host; empty when none answers, and then `why` says what the last one said.
Socket connect_once(const std::string& host, int port, Clock::time_point deadline, std::string& why);

// Two ends of one connection within this process.
std::pair<Socket, Socket> connected_pair();

// Until the descriptor can be read (or written), or the deadline; false: the deadline.
bool wait_for(int descriptor, bool write, Clock::time_point deadline);

}  // namespace tera::nccl
