#include "tests/support/start_ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace tera::test {
namespace {

// Nothing may be allocated between fork and exec.
int start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
          const std::string& file) {
  std::vector<char*> arguments, variables;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& variable : environment) variables.push_back(const_cast<char*>(variable.c_str()));
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  const int pid = fork();
  if (pid != 0) return pid;
  if (!file.empty()) {
    const int out = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
  }
  execve(arguments[0], arguments.data(), variables.data());
  _exit(127);
}

// A variable of this process; empty: not set.
std::string variable_of(const std::string& name) {
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (const std::string text = *variable; text.starts_with(name + "=")) return text.substr(name.size() + 1);
  return "";
}

// The GPU with this number among those that this process may use.
std::string gpu_of_rank(int rank) {
  std::istringstream visible(variable_of("CUDA_VISIBLE_DEVICES"));
  std::string gpu = std::to_string(rank);
  for (int i = 0; i <= rank && std::getline(visible, gpu, ','); ++i) {
  }
  return gpu;
}

std::vector<std::string> environment_of(int rank, int port, const RankProcesses::Options& options) {
  const std::string r = std::to_string(rank), n = std::to_string(options.ranks);
  std::vector<std::string> all = options.environment;  // the first of several with one name counts
  const auto add = [&](const std::vector<std::string>& more) { all.insert(all.end(), more.begin(), more.end()); };
  add({"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port), "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1"});
  if (options.starter == Starter::torchrun)
    add({"RANK=" + r, "WORLD_SIZE=" + n, "LOCAL_RANK=" + r, "LOCAL_WORLD_SIZE=" + n});
  else
    add({"SLURM_PROCID=" + r, "SLURM_STEP_NUM_TASKS=" + n, "SLURM_LOCALID=" + r, "SLURM_STEP_TASKS_PER_NODE=" + n,
         "SLURM_JOB_ID=" + std::to_string(port), "SLURM_STEP_ID=0"});
  if (variable_of("TERA_TEST_OWN_GPUS") == "1")
    add({"CUDA_VISIBLE_DEVICES=" + gpu_of_rank(rank)});
  else  // One machine with one GPU appears as several hosts: NCCL would refuse ranks of one host that share a GPU.
    add({"NCCL_HOSTID=rank" + r});
  for (char** variable = environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
  return all;
}

}  // namespace

int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool bound = bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(descriptor);
  if (!bound) throw std::runtime_error("no port is free");
  return ntohs(address.sin_port);
}

RankProcesses::RankProcesses(const Options& options) {
  const int port = free_port();
  for (int rank = 0; rank < options.ranks; ++rank) {
    RankProcess process;
    if (!options.folder.empty()) process.output_file = options.folder + "/rank." + std::to_string(rank) + ".txt";
    process.pid = start(options.command, environment_of(rank, port, options), process.output_file);
    processes_.push_back(process);
  }
}

RankProcesses::~RankProcesses() {
  for (const RankProcess& process : processes_) {
    if (process.status >= 0 || process.pid <= 0) continue;
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
  }
}

void RankProcesses::send_signal(int rank, int signal) const {
  const RankProcess& process = processes_[static_cast<std::size_t>(rank)];
  if (process.status < 0) kill(process.pid, signal);
}

void RankProcesses::limit_files(int rank, std::size_t bytes) const {
  const RankProcess& process = processes_[static_cast<std::size_t>(rank)];
  const rlimit limit{bytes, bytes};
  if (process.status < 0) prlimit(process.pid, RLIMIT_FSIZE, &limit, nullptr);
}

void RankProcesses::collect() {
  for (RankProcess& process : processes_) {
    int status = 0;
    if (process.status >= 0 || waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
    process.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
}

bool RankProcesses::wait(std::chrono::milliseconds time, const std::vector<int>& stopped) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  for (;;) {
    collect();
    bool all = true;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank)
      all = all && (processes_[rank].status >= 0 ||
                    std::find(stopped.begin(), stopped.end(), static_cast<int>(rank)) != stopped.end());
    if (all) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string RankProcesses::output(int rank) const {
  std::ifstream file(processes_[static_cast<std::size_t>(rank)].output_file);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string RankProcesses::all_output() const {
  std::string text;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    const RankProcess& process = processes_[rank];
    text += "--- rank " + std::to_string(rank) + ", status " + std::to_string(process.status) + "\n" +
            output(static_cast<int>(rank));
  }
  return text;
}

}  // namespace tera::test
