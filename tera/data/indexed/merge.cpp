#include "tera/data/indexed/merge.h"

#include <filesystem>
#include <memory>
#include <vector>

#include "tera/base/error.h"
#include "tera/data/indexed/indexed_writer.h"

namespace tera {
namespace {

std::uint64_t data_bytes(const IndexedDataset& data) {
  return static_cast<std::uint64_t>(data.tokens()) * size_of(data.token_type());
}

// Refuses an output that is also an input: it would be replaced, and a second attempt would then double it.
void check_output(std::span<const IndexedDataset> inputs, const std::string& output_prefix) {
  for (const IndexedDataset& input : inputs) {
    std::error_code ignored;  // where there is no output yet
    require_user(!std::filesystem::equivalent(input.prefix() + ".idx", output_prefix + ".idx", ignored),
                 "--output-prefix {} is one of the inputs ({}); give another name", output_prefix, input.prefix());
  }
}

}  // namespace

PreprocessReport::Output merge_datasets(std::span<const std::string> prefixes, std::string output_prefix,
                                        const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  if (output_prefix.ends_with(".bin") || output_prefix.ends_with(".idx"))
    output_prefix.resize(output_prefix.size() - 4);
  require_user(!prefixes.empty(), "--input names no dataset");
  std::vector<IndexedDataset> inputs;  // all are checked before anything is written
  std::uint64_t total = 0;
  for (const std::string& prefix : prefixes) {
    inputs.emplace_back(dataset_prefix(prefix)).forget_pages();
    total += data_bytes(inputs.back());
    require_user(inputs.back().token_type() == inputs.front().token_type(),
                 "{} holds {} and {} holds {}; only datasets of one type can be merged", inputs.front().prefix(),
                 name_of(inputs.front().token_type()), inputs.back().prefix(), name_of(inputs.back().token_type()));
  }
  check_output(inputs, output_prefix);
  IndexedWriter writer(output_prefix, inputs.front().token_type());
  PreprocessReport::Output report{.prefix = output_prefix, .type = writer.token_type()};
  const auto report_progress = [&] {
    if (progress) progress(writer.data_bytes(), total);
  };
  for (const IndexedDataset& input : inputs) {
    report_progress();
    writer.append(input, report_progress);
    report.tokens += input.tokens();
  }
  writer.complete();
  report_progress();
  writer.publish();
  report.documents = writer.documents();
  report.sequences = writer.sequences();
  return report;
}

}  // namespace tera
