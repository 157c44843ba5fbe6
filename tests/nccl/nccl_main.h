#pragma once
// main() of tests whose ranks are processes with a GPU each, started by start_ranks; every rank runs every test.
// Without a GPU or without NCCL all of them leave with the status that CTest takes for "skipped". --ranks=N says how
// many there have to be: ranks that do not see their launcher are one each, of which most cases ask nothing.

#include "tera/comm/world.h"

namespace tera::test {

RankHandle& nccl_rank_handle();  // this process's handle while tests run

}  // namespace tera::test
