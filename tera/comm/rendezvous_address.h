#pragma once
// The rendezvous of ranks that are processes without MPI: rank 0 listens at this address until all have connected.

#include <string>

namespace tera {

struct RendezvousAddress {
  std::string host{};   // name or address of rank 0
  int port = 0;         // port of rank 0
  int spare_ports = 0;  // where the port is taken, rank 0 listens at the first free one of so many above it
  std::string job{};    // what the ranks of one job have in common; ranks of other jobs are refused
  bool operator==(const RendezvousAddress&) const = default;
};

}  // namespace tera
