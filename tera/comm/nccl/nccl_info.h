#pragma once
// Which NCCL would be opened. Where the program is built without NCCL, no_nccl.cpp has a stub.

#include <string>

namespace tera::nccl {

struct NcclInfo {
  bool built_in = false;
  std::string version;  // "2.28.9"; empty: the library was not found
};

NcclInfo query_nccl();

}  // namespace tera::nccl
