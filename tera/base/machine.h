#pragma once
// Which processes are at one place. A name of a machine does not tell: containers of several may have the same.

#include <cstdint>

namespace tera {

// Equal in processes of one machine that see the same of it, and else not: of its files and so of its memory, which a
// container limits, or of its network, so that they reach each other as localhost.
std::uint64_t memory_place();
std::uint64_t network_place();

}  // namespace tera
