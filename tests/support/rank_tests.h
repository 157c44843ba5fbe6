#pragma once
// Tests in processes that are ranks of one job, where every rank runs every test and only the first one speaks unless
// something is wrong.

#include "tera/comm/world.h"

namespace tera::test {

int run_tests_as(Seat& seat);  // RUN_ALL_TESTS()
Seat& seat_of_this_process();  // while tests run

}  // namespace tera::test
