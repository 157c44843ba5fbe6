// start_ranks [--srun] N SECONDS PROGRAM [ARGUMENT ...] starts the program as N ranks of one job, as torchrun does, or
// srun. Its status is the largest of theirs; 77, skipped, where all say so; 124 where they were not done in time and
// were ended.

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/support/start_ranks.h"

int main(int argc, char** argv) {
  const bool srun = argc > 1 && std::string_view(argv[1]) == "--srun";
  if (srun) {
    ++argv;
    --argc;
  }
  if (argc < 4) return 2;
  const int ranks = std::atoi(argv[1]), seconds = std::atoi(argv[2]);
  if (ranks < 1 || ranks > 64 || seconds < 1) return 2;
  tera::test::RankProcesses processes({.ranks = ranks,
                                       .command = {argv + 3, argv + argc},
                                       .environment = {},
                                       .folder = {},
                                       .starter = srun ? tera::test::Starter::srun : tera::test::Starter::torchrun});
  if (!processes.wait(std::chrono::seconds(seconds))) {
    std::fprintf(stderr, "start_ranks: not done after %d s\n", seconds);
    return 124;
  }
  bool all_skipped = true;
  int status = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int one = processes.status(rank);
    if (one != 0) std::fprintf(stderr, "start_ranks: rank %d ended with status %d\n", rank, one);
    all_skipped = all_skipped && one == 77;
    if (one > status) status = one;
  }
  return all_skipped ? 77 : status == 77 ? 1 : status;
}
