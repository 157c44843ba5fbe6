#pragma once
// Where ranks that are processes find each other without MPI: at rank 0, which listens there until all have come.

#include <string>

namespace tera {

struct Meeting {
  std::string host{};   // of rank 0; a name or an address
  int port = 0;         // rank 0 listens here,
  int spare_ports = 0;  // or at one of so many behind it, where it is taken
  std::string job{};    // what the ranks of one job have in common; others are refused
  bool operator==(const Meeting&) const = default;
};

}  // namespace tera
