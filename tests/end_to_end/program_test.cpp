// The program's interface: exit status and message of every way to start it wrongly, and what it reports of itself.

#include <gtest/gtest.h>

#include <string>

#include "tests/end_to_end/program.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

void expect(const std::string& arguments, int status, const std::string& words) {
  const Outcome outcome = run_program(arguments);
  EXPECT_EQ(outcome.status, status) << arguments << "\n" << outcome.output;
  EXPECT_NE(outcome.output.find(words), std::string::npos) << arguments << "\n" << outcome.output;
}

TEST(Program, ReportsItsVersion) {
  expect("--version", 0, std::string("tera ") + project_version);
  expect("--version", 0, "backends: cpu");
}

TEST(Program, DoctorDescribesTheMachine) {
  for (const char* words : {"compiler", "instruction set", "memory", "huge pages", "CUDA", "MPI"})
    expect("doctor", 0, words);
}

TEST(Program, HelpIsNoMistake) {
  expect("--help", 0, "doctor");
  expect("doctor --help", 0, "Usage: tera doctor");
}

TEST(Program, WrongArgumentsAreTheUsersMistake) {
  expect("", 2, "tera: a command is needed");
  expect("docter", 2, "did you mean 'doctor'?");
  expect("xyzzyxyzzy", 2, "there is no command 'xyzzyxyzzy'; commands are: ");
  expect("--versoin", 2, "--versoin");
  expect("doctor --no-such-option", 2, "--no-such-option");
  expect("doctor too many", 2, "too");
}

TEST(Program, ExplainsWhatIsWrittenAsAFlag) {
  expect("config --explain --use-precision-aware-optimizer", 2, "did you mean optimizer.exp_avg_dtype?");
  expect("config --explain main-params-dtype", 2, "main weights are always fp32");
  expect("config --explain --exp-avg-sq-dtype", 0, "optimizer.exp_avg_sq_dtype\n");
}

TEST(Program, OutputThatCannotBeWrittenIsNotSuccess) {
  expect("doctor > /dev/full", 2, "cannot write to standard output: No space left on device");
  expect("--help > /dev/full", 2, "cannot write to standard output: No space left on device");
  expect("doctor >&-", 2, "cannot write to standard output");
}

TEST(Program, ReaderThatWentAwayIsNotSuccess) {
  // The pipe's reader ends at once, and the program starts later; SIGPIPE would kill it silently.
  const Outcome outcome = run_program("--version; { sleep 0.2; \"" + std::string(paths::program) +
                                      "\" doctor; echo \"status $?\" >&2; } | true");
  EXPECT_NE(outcome.output.find("status 2"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace tera::test
