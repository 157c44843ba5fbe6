// tera doctor: what this machine has and what of it this program can use.

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "apps/build_info.h"
#include "apps/commands.h"
#include "apps/machine_info.h"
#include "tera/backend/cpu/cpu_isa.h"
#include "tera/backend/cuda/runtime/cuda_info.h"
#include "tera/comm/mpi/mpi_info.h"
#include "tera/comm/nccl/nccl_info.h"

namespace tera {
namespace {

struct Row {
  std::string label, value;
};

struct Section {
  std::string title;
  std::vector<Row> rows;
};

std::string or_unknown(const std::string& text) { return text.empty() ? "unknown" : text; }

std::string gib(std::size_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1u << 30)); }

Section program_section() {
  const BuildInfo build = build_info();
  const std::string commit = build.commit.empty() ? "" : fmt::format(" ({})", build.commit);
  const std::string sanitize = build.sanitize.empty() ? "" : fmt::format(", {} sanitizer", build.sanitize);
  return {"Program",
          {{"version", fmt::format("{}{}", build.version, commit)},
           {"compiler", std::string(build.compiler)},
           {"build", fmt::format("{} for {}{}", build.build_type, build.processor, sanitize)}}};
}

std::string instruction_sets() {
  std::string others;
  for (const auto& [isa, name] : EnumNames<cpu::Isa>::values)
    if (isa != cpu::best_isa() && cpu::supports(isa)) others += fmt::format(", {}", name);
  return fmt::format("{} in use{}{}", name_of(cpu::best_isa()),
                     others.empty() ? "" : "; also possible: ", others.empty() ? "" : others.substr(2));
}

std::string huge_page_advice(const std::string& mode) {
  if (mode == "always" || mode == "madvise") return mode + " (used for planned memory)";
  if (mode == "never")
    return "never (steps are slower; as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)";
  return "unknown";
}

Section machine_section() {
  const MachineInfo machine = query_machine();
  return {"Machine",
          {{"system", or_unknown(machine.system)},
           {"cpu", or_unknown(machine.cpu_model)},
           {"cores", fmt::format("{} usable", machine.cores)},
           {"instruction set", instruction_sets()},
           {"memory", fmt::format("{}, {} available", gib(machine.memory_bytes), gib(machine.available_bytes))},
           {"huge pages", huge_page_advice(machine.huge_pages)}}};
}

std::string cudnn_text(const cuda::CudaLibraries& libraries) {
  if (!libraries.cudnn.empty()) return libraries.cudnn;
  constexpr std::string_view instead = "attention by our own, slower kernels";
  if (!libraries.cudnn_built_in)
    return fmt::format("left out of this build, whose machine had no headers of it (docs/build.md): {}", instead);
  return fmt::format("not found: {}", instead);
}

std::string nccl_text() {
  const nccl::NcclInfo info = nccl::query_nccl();
  if (!info.built_in) return "not built in (its header was not found at build time): one process at most with GPUs";
  return info.version.empty() ? "not found: one process at most with GPUs" : info.version;
}

Section cuda_section() {
  const cuda::CudaInfo info = cuda::query_cuda();
  if (!info.built_in)
    return {"CUDA", {{"status", "not built in (no toolkit was found at build time, or TERA_CUDA=OFF)"}}};
  const cuda::CudaLibraries libraries = cuda::query_libraries();
  Section section{"CUDA",
                  {{"toolkit", info.toolkit},
                   {"built for", info.architectures + " (CMAKE_CUDA_ARCHITECTURES)"},
                   {"driver", info.driver.empty() ? "none" : "serves CUDA " + info.driver},
                   {"cublaslt", libraries.cublaslt.empty() ? "not found: a GPU cannot be used" : libraries.cublaslt},
                   {"cudnn", cudnn_text(libraries)},
                   {"nccl", nccl_text()}}};
  if (info.gpus.empty()) section.rows.push_back({"gpus", info.problem.empty() ? "none" : "none: " + info.problem});
  for (std::size_t i = 0; i < info.gpus.size(); ++i) {
    const cuda::GpuInfo& gpu = info.gpus[i];
    section.rows.push_back(
        {fmt::format("gpu {}", i),
         fmt::format("{}, compute {}.{}, {}, {}", gpu.name, gpu.major, gpu.minor, gib(gpu.memory_bytes),
                     gpu.problem.empty() ? "kernels run" : "unusable: " + gpu.problem)});
  }
  return section;
}

Section mpi_section() {
  const mpi::MpiInfo info = mpi::query_mpi();
  return {"MPI",
          {{"library", info.built_in ? info.library : "not built in (none was found at build time, or TERA_MPI=OFF)"}}};
}

void print(const std::vector<Section>& sections) {
  constexpr int label_width = 17;
  for (const Section& section : sections) {
    fmt::print("{}{}\n", &section == &sections.front() ? "" : "\n", section.title);
    for (const Row& row : section.rows) fmt::print("  {:<{}}{}\n", row.label, label_width, row.value);
  }
}

}  // namespace

void add_doctor_command(Command app) {
  Command command = app.add_subcommand("doctor", "what this machine has and what of it this program can use");
  command.callback([] { print({program_section(), machine_section(), cuda_section(), mpi_section()}); });
}

}  // namespace tera
