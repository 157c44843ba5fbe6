// tera preprocess: JSONL to tokens on disk.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/output_table.h"
#include "apps/tokenizer_options.h"
#include "tera/base/cores.h"
#include "tera/base/error.h"
#include "tera/base/log.h"
#include "tera/base/progress_text.h"
#include "tera/base/signals.h"
#include "tera/data/preprocess/preprocess.h"

namespace tera {
namespace {

using Clock = std::chrono::steady_clock;

struct PreprocessArguments {
  PreprocessOptions preprocess;
  TokenizerArguments tokenizer;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

// A progress bar on a terminal, elsewhere a line every ten seconds.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(Log& log) : log_(log) {}

  void show(const PreprocessProgress& progress) {
    constexpr double seconds_between_lines = 10;
    const double seconds = seconds_since(start_);
    if (!log_.terminal() && seconds - last_report_ < seconds_between_lines) return;
    last_report_ = seconds;
    ProgressLine line;
    put(line, progress, seconds);
    if (log_.terminal())
      log_.status(line.text());
    else
      log_.info("{}", line.text());
  }
  double seconds() const { return seconds_since(start_); }

 private:
  void put(ProgressLine& line, const PreprocessProgress& progress, double seconds) const {
    const double fraction = progress.stored_total == 0 ? 0
                                                       : static_cast<double>(progress.stored_bytes) /
                                                             static_cast<double>(progress.stored_total);
    if (progress.stored_total > 0 && log_.terminal()) {
      put_bar(line, fraction);
      line.put(" ");
    }
    if (progress.stored_total > 0) line.put("{:.1f} % | ", 100 * fraction);
    line.put("{} lines | {:.0f} MB | {:.1f} MB/s", progress.lines, megabytes(progress.text_bytes),
             megabytes(progress.text_bytes) / seconds);
    if (progress.skipped > 0) line.put(" | {} skipped", progress.skipped);
    if (fraction <= 0) return;
    line.put(" | ETA ");
    put_duration(line, seconds * (1 - fraction) / fraction);
  }

  Log& log_;
  Clock::time_point start_ = Clock::now();
  double last_report_ = 0;
};

void run_preprocess(const PreprocessArguments& options) {
  StopRequest stop;  // before there are other threads
  const auto tokenizer = options.tokenizer.make();
  stop.collect();
  Log log;
  ProgressDisplay display(log);
  const PreprocessEvents events{
      .progress =
          [&](const PreprocessProgress& progress) {
            if (stop.asked())
              throw Interrupted(fmt::format("interrupted after {} lines; no dataset was written", progress.lines),
                                stop.signal());
            display.show(progress);
          },
      .skipped = [&](const std::string& line) { log.warn("skipped: {}", line); },
      .replaces =
          [&](const std::string& prefix) { log.info("{} is there already; it will be replaced at the end", prefix); }};
  const PreprocessReport report = preprocess(options.preprocess, *tokenizer, events);
  log.clear_status();
  print_outputs(log, report.outputs);
  const PreprocessProgress& progress = report.progress;
  log.info("{} lines, {:.1f} MB of JSONL in {:.1f} s: {:.1f} MB/s{}", progress.lines, megabytes(progress.text_bytes),
           display.seconds(), megabytes(progress.text_bytes) / display.seconds(),
           progress.skipped == 0 ? "" : fmt::format("; {} lines skipped", progress.skipped));
}

}  // namespace

void add_preprocess_command(Command app) {
  auto options = std::make_shared<PreprocessArguments>();
  PreprocessOptions& preprocess = options->preprocess;
  preprocess.workers = usable_cores();
  Command command = app.add_subcommand("preprocess", "JSONL to a dataset of tokens, .bin and .idx");
  command
      .add_option("--input", preprocess.inputs,
                  "JSONL, also .gz and .zst: files in the order given, folders and patterns (sorted), - for standard "
                  "input")
      .required()
      .type_name("F ...");
  command.add_option("--output-prefix", preprocess.output_prefix, "writes P_<key>_document.bin and .idx")
      .required()
      .type_name("P");
  command.add_option("--json-keys", preprocess.keys, "whose texts to tokenize; a dataset for each")
      .capture_default_str()
      .type_name("K ...");
  command.add_flag("--append-eod", preprocess.append_eod, "end documents with the tokenizer's token for that");
  command.add_flag("--skip-bad-lines", preprocess.skip_bad_lines,
                   "leave out lines that cannot be read, and count them; without it the first is an error");
  command.add_option("--workers", preprocess.workers, "threads that tokenize; the result is always the same")
      .capture_default_str()
      .type_name("N");
  options->tokenizer.add_to(command);
  command.callback([options] { run_preprocess(*options); });
}

}  // namespace tera
