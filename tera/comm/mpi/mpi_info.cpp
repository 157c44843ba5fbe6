#include "tera/comm/mpi/mpi_info.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace tera::mpi {

MpiInfo query_mpi() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  // One of the few calls that MPI allows before MPI_Init.
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return {.built_in = true, .library = "unknown"};
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  return {.built_in = true, .library = std::string(all.substr(0, std::min(all.find('\n'), all.find(", package:"))))};
}

}  // namespace tera::mpi
