#pragma once
// main() of tests whose ranks are processes with a GPU each, started by start_ranks; every rank runs every test.
// Without a GPU or without NCCL all of them leave with the status that CTest takes for "skipped".

#include "tera/comm/world.h"

namespace tera::test {

Seat& nccl_seat();  // of this process, while tests run

}  // namespace tera::test
