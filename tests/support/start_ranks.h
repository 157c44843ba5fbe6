#pragma once
// Starts ranks as processes without mpirun, with the environment of torchrun or srun, watches and ends them. They share
// one GPU, unless TERA_TEST_OWN_GPUS=1 gives each one of its own.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tera::test {

struct RankProcess {
  int pid = -1;
  int status = -1;  // exit status; 128 + signal where one ended it; -1: it runs
  std::string output_file;
};

enum class Starter : std::uint8_t { torchrun, srun };

class RankProcesses {
 public:
  struct Options {
    int ranks = 2;
    std::vector<std::string> command;      // the program and its arguments
    std::vector<std::string> environment;  // NAME=value, more of them
    std::string folder;                    // for their output: FOLDER/rank.N.txt; empty: the output of this process
    Starter starter = Starter::torchrun;
  };
  explicit RankProcesses(const Options& options);
  ~RankProcesses();  // kills those that are left
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void send_signal(int rank, int signal) const;
  void limit_files(int rank, std::size_t bytes) const;  // limits the files that it writes from now on
  // Waits until all have ended but those that are `stopped`; false: the time was over.
  bool wait(std::chrono::milliseconds time, const std::vector<int>& stopped = {});
  int status(int rank) const { return processes_[static_cast<std::size_t>(rank)].status; }
  std::string output(int rank) const;
  std::string all_output() const;

 private:
  void collect();
  std::vector<RankProcess> processes_;
};

// A port of this machine that nobody listens at.
int free_port();

}  // namespace tera::test
