#pragma once
// The functions of NCCL that we call, loaded with dlopen when ranks on GPUs first join
// (docs/decisions/cuda-libraries-opened-late.md).

#include <nccl.h>

namespace tera::nccl {

// The library stays open: its threads may outlive our use of it.
struct NcclApi {
  NcclApi();  // UserError when the library is not there

  decltype(&ncclGetVersion) version;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclCommInitRank) init;
  decltype(&ncclCommSplit) split;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
};

}  // namespace tera::nccl
