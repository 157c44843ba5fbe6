#include "tera/data/preprocess/preprocess.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/data/indexed/indexed_writer.h"
#include "tera/data/preprocess/compressed_input.h"
#include "tera/data/preprocess/ordered_pipeline.h"
#include "tera/data/preprocess/preprocess_block.h"
#include "tera/data/preprocess/text_files.h"

namespace tera {
namespace {

using Pipeline = OrderedPipeline<BlockJob>;

constexpr auto progress_interval = std::chrono::milliseconds(50);
constexpr std::uint64_t bytes_in_flight = std::uint64_t{64} << 20;
constexpr std::size_t max_reported = 10;
constexpr std::string_view json_lines = "JSON Lines are expected: an object on every line, such as {\"text\": \"...\"}";

void check_keys(const std::vector<std::string>& keys) {
  require_user(!keys.empty(), "--json-keys names no key");
  for (const std::string& key : keys)
    require_user(!key.empty() && key.find_first_of(std::string_view("/\0", 2)) == key.npos,
                 "--json-keys {}: the name of a file is made from the key, so it must have a name without '/'", key);
  const std::set<std::string> different(keys.begin(), keys.end());
  require_user(different.size() == keys.size(), "--json-keys has a key twice");
}

void check_options(const PreprocessOptions& options, const Tokenizer& tokenizer) {
  check_keys(options.keys);
  require_user(options.workers >= 1 && options.workers <= 1024, "--workers {}: it must be from 1 to 1024",
               options.workers);
  require_user(!options.append_eod || tokenizer.eod() >= 0,
               "--append-eod: this tokenizer has no token that ends a document");
}

std::vector<std::string> find_inputs(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const auto& path : find_text_files(inputs, "--input")) files.push_back(path.string());
  require_user(std::ranges::count(files, CompressedInput::standard_input) <= 1,
               "--input: standard input (-) can be read only once");
  return files;
}

// Opens every file once before anything else: a missing file should not be found after an hour.
std::uint64_t total_size(const std::vector<std::string>& files) {
  std::uint64_t total = 0;
  bool known = true;
  for (const std::string& file : files) {
    const auto size = stored_size(file);
    known = known && size.has_value();
    total += size.value_or(0);
  }
  return known ? total : 0;
}

// Takes encoded blocks in order, writes them and keeps count.
class Collector {
 public:
  Collector(const PreprocessOptions& options, const Tokenizer& tokenizer, const PreprocessEvents& events)
      : options_(options),
        events_(events),
        type_(token_type_for(tokenizer.vocab_size())),
        files_(find_inputs(options.inputs)) {
    progress_.stored_total = total_size(files_);
    for (const std::string& key : options.keys)
      writers_.push_back(
          std::make_unique<IndexedWriter>(fmt::format("{}_{}_document", options.output_prefix, key), type_));
    for (const auto& writer : writers_)
      if (events.replaces && path_exists(writer->prefix() + ".idx")) events.replaces(writer->prefix());
  }

  const std::vector<std::string>& files() const { return files_; }

  void take(const BlockJob& job) {
    if (job.block.first) line_ = 0;
    for (const BadLine& bad : job.bad) report_bad_line(job, bad);
    for (std::size_t key = 0; key < writers_.size(); ++key) {
      const StoredDocuments& documents = job.documents[key];
      writers_[key]->add_stored(documents.tokens, documents.lengths, documents.ends);
    }
    line_ += job.lines;
    progress_.lines += job.lines;
    progress_.skipped += job.bad_lines;
    progress_.text_bytes += job.block.text().size();
    progress_.stored_bytes = job.block.stored;
  }

  void print_progress() const {
    if (events_.progress) events_.progress(progress_);
  }

  PreprocessReport finish() {
    check_not_empty();
    for (auto& writer : writers_) writer->complete();
    print_progress();  // the last chance to stop
    std::vector<IndexedWriter*> all;
    for (auto& writer : writers_) all.push_back(writer.get());
    IndexedWriter::publish(all);
    PreprocessReport report{.progress = progress_};
    for (const IndexedWriter* writer : all)
      report.outputs.push_back({.prefix = writer->prefix(),
                                .type = type_,
                                .documents = writer->documents(),
                                .sequences = writer->sequences(),
                                .tokens = static_cast<std::int64_t>(writer->data_bytes() / size_of(type_))});
    return report;
  }

 private:
  void check_not_empty() const {
    const std::string inputs =
        files_.size() == 1 ? name_of(files_.front()) : fmt::format("the {} files of --input", files_.size());
    if (progress_.lines == 0) fail_user("{}: nothing to read; {}", inputs, json_lines);
    if (progress_.lines == progress_.skipped)
      fail_user("{}: all {} lines were skipped, so no dataset was written; {}", inputs, progress_.lines, json_lines);
  }

  static std::string name_of(const std::string& file) {
    return file == CompressedInput::standard_input ? "standard input" : file;
  }

  void report_bad_line(const BlockJob& job, const BadLine& bad) {
    const std::int64_t line = line_ + bad.line;
    std::string message = fmt::format("{}:{}: {}", name_of(files_[job.block.file]), line + 1, bad.reason);
    const std::string_view text = job.block.text();
    if (line == 0 && !text.starts_with('{'))
      message += fmt::format("; {}", json_lines);  // the file may be plain text or another format
    if (!options_.skip_bad_lines) fail_user("{}", message);
    if (reported_++ < max_reported && events_.skipped) events_.skipped(message);
  }

  const PreprocessOptions& options_;
  const PreprocessEvents& events_;
  TokenType type_;
  std::vector<std::string> files_;
  std::vector<std::unique_ptr<IndexedWriter>> writers_;
  PreprocessProgress progress_;
  std::int64_t line_ = 0;  // lines of the current file
  std::size_t reported_ = 0;
};

Pipeline::Steps steps_of(const PreprocessOptions& options, const Tokenizer& tokenizer, std::vector<std::string> files,
                         std::vector<std::unique_ptr<BlockEncoder>>& encoders, std::unique_ptr<BlockReader>& reader) {
  const auto make = [&options, &reader, files = std::move(files)](BlockJob& job, const std::atomic<bool>& stop) {
    if (!reader)
      reader = std::make_unique<BlockReader>(
          files, BlockReader::Options{.block_bytes = options.block_bytes, .max_line_bytes = options.max_line_bytes},
          stop);
    return reader->next(job.block);
  };
  const auto work = [&](BlockJob& job, int worker) {
    auto& encoder = encoders[static_cast<std::size_t>(worker)];
    if (!encoder)
      encoder = std::make_unique<BlockEncoder>(options, tokenizer);  // on its own thread, for the locality of memory
    encoder->encode(job);
  };
  return {make, work, [](const BlockJob& job) { return std::uint64_t{job.block.memory()}; }};
}

}  // namespace

PreprocessReport preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer,
                            const PreprocessEvents& events) {
  check_options(options, tokenizer);
  Collector collector(options, tokenizer, events);
  std::vector<std::unique_ptr<BlockEncoder>> encoders(static_cast<std::size_t>(options.workers));
  std::unique_ptr<BlockReader> reader;
  Pipeline pipeline(
      {.workers = options.workers, .jobs = static_cast<std::size_t>(options.workers) * 2 + 4, .bytes = bytes_in_flight},
      steps_of(options, tokenizer, collector.files(), encoders, reader));
  auto last_report = std::chrono::steady_clock::now();
  while (true) {
    const Pipeline::State state = pipeline.next(progress_interval);
    if (state == Pipeline::State::ended) return collector.finish();
    if (state == Pipeline::State::ready) {
      collector.take(pipeline.job());
      pipeline.job().clear();
      pipeline.release();
    }
    if (const auto now = std::chrono::steady_clock::now(); now - last_report >= progress_interval) {
      collector.print_progress();
      last_report = now;
    }
  }
}

}  // namespace tera
