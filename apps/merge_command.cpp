// tera dataset merge: several .bin/.idx datasets as one.

#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/output_table.h"
#include "tera/base/error.h"
#include "tera/base/progress_text.h"
#include "tera/base/signals.h"
#include "tera/data/indexed/merge.h"

namespace tera {
namespace {

struct MergeOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
};

void merge(const MergeOptions& options) {
  StopRequest stop;
  stop.collect();
  Log log;
  const auto output =
      merge_datasets(options.inputs, options.output_prefix, [&](std::uint64_t bytes, std::uint64_t total) {
        if (stop.asked()) throw Interrupted("interrupted; no dataset was written", stop.signal());
        ProgressLine line;
        put_bar(line, total == 0 ? 1.0 : static_cast<double>(bytes) / static_cast<double>(total));
        line.put(" {:.0f} of {:.0f} MB", static_cast<double>(bytes) / 1e6, static_cast<double>(total) / 1e6);
        log.status(line.text());
      });
  log.clear_status();
  print_outputs(log, {&output, 1});
}

}  // namespace

void add_merge_command(Command dataset) {
  auto options = std::make_shared<MergeOptions>();
  Command command = dataset.add_subcommand("merge", "several .bin/.idx datasets as one, in the order given");
  command.add_option("--input", options->inputs, "prefixes: the names of the files without .bin and .idx")
      .required()
      .type_name("P ...");
  command.add_option("--output-prefix", options->output_prefix, "of the files to write").required().type_name("P");
  command.callback([options] { merge(*options); });
}

}  // namespace tera
