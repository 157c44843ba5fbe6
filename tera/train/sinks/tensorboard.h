#pragma once
// TensorBoard event files: the numbers of each step as scalars, under their names in metrics.jsonl.
//
// A file is a sequence of records: length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data, all
// little-endian. The data is a protobuf Event {1 wall_time double, 2 step, 3 file_version, 5 summary {1 value {1 tag,
// 2 simple_value float}}, 7 session_log {1 status}}, written here field by field: a library for six fields would be
// larger than they are.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "tera/base/file.h"
#include "tera/train/sinks/metrics.h"

namespace tera {

// Builds events in a buffer that is kept from step to step.
class TensorboardEvents {
 public:
  // The first record of a file.
  void add_version(double wall_time);
  // From here on steps of earlier files from this one on are void: a run that goes on from a checkpoint repeats them.
  void add_start(double wall_time, std::int64_t step);
  void begin(double wall_time, std::int64_t step);
  void scalar(std::string_view tag, float value);
  void end();  // completes the record

  std::string_view records() const { return records_; }
  void clear() { records_.clear(); }

 private:
  void add_record();

  std::string event_, summary_, value_, records_;
};

class TensorboardSink final : public MetricsSink {
 public:
  // A new file in the folder, which is made: a run that goes on adds a file, and TensorBoard shows them as one. Another
  // run needs another folder.
  explicit TensorboardSink(const std::filesystem::path& folder);
  void step(const StepMetrics& metrics) override;
  void eval(const EvalMetrics& metrics) override;

 private:
  void begin(std::int64_t step);
  void end();
  void scalar(std::string_view name, std::size_t index, double value);

  AppendFile file_;
  TensorboardEvents events_;
  std::string tag_;
  bool started_ = false;
};

}  // namespace tera
