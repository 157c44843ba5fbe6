#pragma once
#include <cstddef>

namespace tera {

// Bytes that this machine, and the container around this process, can still give; SIZE_MAX where nobody says.
std::size_t available_host_memory();

}  // namespace tera
