#pragma once
#include <cstddef>

namespace tera {

// Bytes that are available on this machine and in the container of this process; SIZE_MAX where that is not known.
std::size_t available_host_memory();

}  // namespace tera
