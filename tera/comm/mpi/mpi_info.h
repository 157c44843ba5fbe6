#pragma once
// Which MPI library this program was linked with. Without MPI, no_mpi.cpp has a stub.

#include <string>

namespace tera::mpi {

struct MpiInfo {
  bool built_in = false;
  std::string library;  // as the library names itself, first line only
};

MpiInfo query_mpi();

}  // namespace tera::mpi
