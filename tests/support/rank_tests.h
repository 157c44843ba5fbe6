#pragma once
// Tests in processes that are ranks of one job, where every rank runs every test and only the first one prints unless a
// test fails.

#include "tera/comm/world.h"

namespace tera::test {

int run_tests_as(RankHandle& rank_handle);  // RUN_ALL_TESTS()
RankHandle& rank_handle_of_this_process();  // while tests run

}  // namespace tera::test
