// The program: finds the subcommand, runs it, and turns what it throws into a message and an exit status.

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/build_info.h"
#include "apps/commands.h"
#include "apps/nearest_name.h"
#include "tera/backend/cuda/runtime/cuda_info.h"
#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/base/signals.h"
#include "tera/comm/mpi/mpi_info.h"
#include "tera/config/catalog.h"

namespace tera {
namespace {

enum ExitStatus { success = 0, our_fault = 1, users_mistake = 2 };

void add_commands(Command app) {
  add_train_command(app);
  add_plan_command(app);
  add_generate_command(app);
  add_logits_command(app);
  add_export_command(app);
  add_import_command(app);
  add_config_command(app);
  add_bench_command(app);
  add_preprocess_command(app);
  add_dataset_command(app);
  add_inspect_command(app);
  add_tokenizer_command(app);
  add_doctor_command(app);
}

std::string version_text() {
  const BuildInfo build = build_info();
  const auto cuda = cuda::toolkit_version();
  const auto mpi = mpi::query_mpi();
  std::string text = fmt::format("tera {}", build.version);
  if (!build.commit.empty()) text += fmt::format(" ({})", build.commit);
  text += fmt::format("\nbuilt by {} for {}, {}", build.compiler, build.processor, build.build_type);
  if (!build.sanitize.empty()) text += fmt::format(", {} sanitizer", build.sanitize);
  text += cuda.empty() ? "\nbackends: cpu\n" : "\nbackends: cpu, cuda\n";
  if (!cuda.empty()) text += fmt::format("built with CUDA {}\n", cuda);
  if (mpi.built_in) text += fmt::format("built with {}\n", mpi.library);
  return text;
}

// A descriptor that the caller closed would be given to the next file we open, and messages would land in it. Standard
// output becomes one that cannot be written, so that the loss is noticed at the end.
void keep_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    const int opened = open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    if (opened != -1 && opened != descriptor) {
      dup2(opened, descriptor);
      close(opened);
    }
  }
}

void report(std::string_view message) {
  const std::string line = fmt::format("tera: {}\n", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

// CLI11's message about an unknown subcommand does not list the known ones, so this one is checked first.
void check_command_name(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = command_names(app);
  if (word.empty() || word.front() == '-' || std::find(names.begin(), names.end(), word) != names.end()) return;
  const std::string nearest = nearest_name(word, names);
  fail_user("there is no command '{}'; {}commands are: {}", word,
            nearest.empty() ? "" : fmt::format("did you mean '{}'? The ", nearest), joined(names, ", "));
}

// The command that was given: `step` of `bench step`.
const CLI::App& given_command(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  return given.empty() ? app : given_command(*given.front());
}

// --ranks is for commands that start ranks, --world for commands that plan for them.
std::string meant_ranks(const CLI::App& command, std::string_view flag) {
  const auto has_flag = [&](const char* name) { return command.get_option_no_throw(name) != nullptr; };
  if (flag == "ranks" && has_flag("--world")) return fmt::format("{} starts none: write --world N", command.get_name());
  if (flag == "world" && has_flag("--ranks")) return "write --ranks N, or start it with mpirun -n N";
  return {};
}

// Keys of a run's config written as flags, as Megatron-LM has them: "write dist.context_parallel_size=VALUE", or why
// there is no such key.
std::string meant_key(const CLI::App& command, std::string flag) {
  if (flag.empty() || command.get_option_no_throw("overrides") == nullptr) return {};
  std::ranges::replace(flag, '-', '_');
  const std::string key = nearest_key(flag);
  const std::string_view note = note_on_key(flag);
  if (key.find('.') == std::string::npos) return std::string(note);
  const Field* field = find_field(key);
  std::string_view value = value_for_key(flag);
  const bool yes = field != nullptr && field->kind == FieldKind::boolean && note.empty();
  if (value.empty()) value = yes ? "true" : "VALUE";
  return fmt::format("write {}={}{}{}", key, value, note.empty() ? "" : "; ", note);
}

std::string what_was_meant(const CLI::App& command, const std::string& flag) {
  const std::string ranks = meant_ranks(command, flag);
  return ranks.empty() ? meant_key(command, flag) : ranks;
}

// The unexpected arguments, in the order in which they were typed (CLI11 would reverse it), and what was meant by each
// flag, with the flag's name where there are several.
std::string about_extras(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(true);
  std::string text = fmt::format("The following argument{} not expected: {}", extras.size() > 1 ? "s were" : " was",
                                 joined(extras, " "));
  const auto is_flag = [](const std::string& extra) { return extra.starts_with("--"); };
  const bool several = std::ranges::count_if(extras, is_flag) > 1;
  for (const std::string& extra : extras) {
    if (!is_flag(extra)) continue;
    const std::string flag = extra.substr(0, extra.find('='));  // "--ranks" of `--ranks=4`
    const std::string meant = what_was_meant(given_command(app), flag.substr(2));
    if (!meant.empty()) text += several ? fmt::format("; {}: {}", flag, meant) : fmt::format("; {}", meant);
  }
  return text;
}

// Help goes to standard output and is not a mistake; everything else CLI11 throws is one.
int finish_parsing(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    const bool version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
    const std::string text = version ? version_text() : app.help();
    std::fwrite(text.data(), 1, text.size(), stdout);
    return success;
  }
  const bool extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  report(fmt::format("{} (--help shows what is valid)", extras ? about_extras(app) : error.what()));
  return users_mistake;
}

int run(int argc, char** argv) {
  CLI::App app("Trains large language models: one native program.", "tera");
  app.set_version_flag("--version", "");  // the text is made when it is requested
  add_commands(Command(&app));
  try {
    if (argc > 1) check_command_name(app, argv[1]);
    app.parse(argc, argv);
    require_user(!app.get_subcommands().empty(), "a command is needed; they are: {} (--help tells more)",
                 joined(command_names(app), ", "));
    return success;
  } catch (const CLI::ParseError& error) {
    return finish_parsing(app, error);
  }
}

int run_and_report(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const AlreadyReported& error) {
    return error.status();
  } catch (const Interrupted& error) {
    report(error.what());
    return error.status();
  } catch (const UserError& error) {
    report(error.what());
    return users_mistake;
  } catch (const std::filesystem::filesystem_error& error) {  // paths come from the user
    report(error.what());
    return users_mistake;
  } catch (const std::exception& error) {
    if (std::ferror(stdout)) return users_mistake;  // a failed write, which main reports
    report(fmt::format("{}\nThis is a fault of tera, not of what you gave it; please report it.", error.what()));
    return our_fault;
  }
}

}  // namespace
}  // namespace tera

int main(int argc, char** argv) {
  // A closed pipe, or a file larger than `ulimit -f`, then fails the write, which is reported.
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  tera::keep_standard_descriptors();
  const int status = tera::run_and_report(argc, argv);
  if (std::fflush(stdout) != 0) {
    tera::report(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
    return tera::users_mistake;
  }
  if (std::ferror(stdout)) {
    tera::report("cannot write to standard output: an earlier write failed");
    return tera::users_mistake;
  }
  return status;
}
