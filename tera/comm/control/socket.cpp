#include "tera/comm/control/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "tera/base/error.h"

namespace tera::control {
namespace {

using namespace std::chrono_literals;

constexpr auto connect_timeout = 2s;  // limit for one address
constexpr int backlog = 1024;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Null when the host is not known, with the reason in `why`.
Addresses find_addresses(const char* host, int port, int flags, std::string& why) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int status = getaddrinfo(host, std::to_string(port).c_str(), &wanted, &list);
  if (status != 0) why = gai_strerror(status);
  return Addresses(status == 0 ? list : nullptr);
}

Socket open_socket(const addrinfo& address) {
  return Socket(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
}

void set_option(int descriptor, int level, int name, int value) {
  setsockopt(descriptor, level, name, &value, sizeof(value));
}

bool is_this_machine_alone(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

int port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket listen_on(const addrinfo& address, std::string& why) {
  Socket socket = open_socket(address);
  if (socket) {
    set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.ai_family == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);  // accepts IPv4, too
    if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket.get(), backlog) == 0)
      return socket;
  }
  why = std::strerror(errno);
  return {};
}

Socket listen_at_port(const std::string& host, int port, std::string& why) {
  const bool alone = is_this_machine_alone(host);
  const Addresses list = find_addresses(alone ? host.c_str() : nullptr, port, AI_PASSIVE, why);
  for (const bool six : {true, false})  // an IPv6 socket for all addresses takes IPv4, too
    for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
      if ((address->ai_family == AF_INET6) != six) continue;
      if (Socket socket = listen_on(*address, why)) return socket;
    }
  return {};
}

Socket connect_to(const addrinfo& address, Clock::time_point deadline, std::string& why) {
  Socket socket = open_socket(address);
  if (!socket) {
    why = std::strerror(errno);
    return {};
  }
  int error = ::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    socklen_t length = sizeof(error);
    if (!wait_for(socket.get(), /*write=*/true, deadline))
      error = ETIMEDOUT;
    else if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0)
      error = errno;
  }
  if (error == 0) {
    set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    return socket;
  }
  why = std::strerror(error);
  return {};
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Listener listen_at(const std::string& host, int port, int spare) {
  std::string why;
  for (int tried = port; tried <= std::min(port + spare, 65535); ++tried)
    if (Socket socket = listen_at_port(host, tried, why)) {
      const int taken = port_of(socket.get());
      return {.socket = std::move(socket), .port = taken};
    }
  fail_user("rank 0 cannot listen at port {}{}: {}; MASTER_PORT names one that is free there", port,
            spare > 0 ? fmt::format(" to {}", port + spare) : "", why);
}

Accepted accept_one(const Listener& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  Accepted accepted{.socket = Socket(::accept4(listener.socket.get(), reinterpret_cast<sockaddr*>(&address), &length,
                                               SOCK_NONBLOCK | SOCK_CLOEXEC))};
  if (!accepted.socket) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
      accepted.refusal = std::strerror(errno);
    return accepted;
  }
  set_option(accepted.socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  std::array<char, NI_MAXHOST> name{};
  const int status =
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST);
  accepted.from = status == 0 ? name.data() : "an unknown address";
  return accepted;
}

Socket connect_once(const std::string& host, int port, Clock::time_point deadline, std::string& why) {
  const Addresses list = find_addresses(host.c_str(), port, 0, why);
  for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next)
    if (Socket socket = connect_to(*address, std::min(deadline, Clock::now() + connect_timeout), why)) return socket;
  return {};
}

std::pair<Socket, Socket> connected_pair() {
  std::array<int, 2> ends{-1, -1};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair: {}",
          std::strerror(errno));
  return {Socket(ends[0]), Socket(ends[1])};
}

bool wait_for(int descriptor, bool write, Clock::time_point deadline) {
  pollfd one{.fd = descriptor, .events = static_cast<short>(write ? POLLOUT : POLLIN), .revents = 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return ::poll(&one, 1, 0) > 0;
    const int ready = ::poll(&one, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the caller's next call fails with the reason
  }
}

}  // namespace tera::control
