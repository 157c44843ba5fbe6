#include "tera/comm/nccl/nccl_api.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include "tera/backend/cuda/runtime/open_library.h"
#include "tera/base/error.h"
#include "tera/comm/nccl/nccl_info.h"

namespace tera::nccl {
namespace {

constexpr const char* library_name = "libnccl.so.2";

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  require_user(function != nullptr, "the NCCL library on this machine has no {}; 2.18 or later is needed", name);
}

}  // namespace

NcclApi::NcclApi() {
  void* const library = cuda::open_library(library_name);
  require_user(library != nullptr,
               "several processes with a GPU each need {}, which was not found; ranks as threads of one process "
               "(--ranks N) share one GPU without it",
               library_name);
  find(library, "ncclGetVersion", version);
  find(library, "ncclGetErrorString", error_string);
  find(library, "ncclGetLastError", last_error);
  find(library, "ncclGetUniqueId", unique_id);
  find(library, "ncclCommInitRank", init);
  find(library, "ncclCommSplit", split);
  find(library, "ncclCommDestroy", destroy);
  find(library, "ncclCommAbort", abort);
  find(library, "ncclCommGetAsyncError", async_error);
  find(library, "ncclAllReduce", all_reduce);
  find(library, "ncclAllGather", all_gather);
  find(library, "ncclReduceScatter", reduce_scatter);
  find(library, "ncclBroadcast", broadcast);
  find(library, "ncclSend", send);
  find(library, "ncclRecv", receive);
  find(library, "ncclGroupStart", group_start);
  find(library, "ncclGroupEnd", group_end);
}

NcclInfo query_nccl() {
  NcclInfo info{.built_in = true, .version = {}};
  try {
    int version = 0;
    if (NcclApi().version(&version) == ncclSuccess)
      info.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  } catch (const UserError&) {  // not found
  }
  return info;
}

}  // namespace tera::nccl
