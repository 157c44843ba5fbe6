#pragma once
// What CMake knows and tests need. They are values of one generated source and not macros, so that objects of tests are
// the same in every checkout and a compiler cache finds them.

#include <string>

namespace tera::test {

namespace paths {
extern const char* const source;           // the repository
extern const char* const program;          // tera
extern const char* const control_failing;  // tests/nccl/control_failing.cpp
extern const char* const mpi_failing;      // tests/parallel/mpi_failing.cpp
extern const char* const nccl_failing;     // tests/nccl/nccl_failing.cpp
extern const char* const mpirun;           // its path with options; empty where there is no MPI
}  // namespace paths

extern const char* const project_version;
extern const bool gpus_are_emulated;  // in the programs above

// A file or folder of the repository, such as source_path("configs/tests/tiny.yaml").
inline std::string source_path(const std::string& relative) { return std::string(paths::source) + "/" + relative; }

}  // namespace tera::test
