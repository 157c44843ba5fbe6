#include "tera/train/sinks/tensorboard.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <span>

#include "tera/base/checksum.h"
#include "tera/base/error.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class Unsigned>
void put_little_endian(std::string& to, Unsigned value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) to += static_cast<char>((value >> (8 * i)) & 0xff);
}

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>((value & 0x7f) | 0x80);
  to += static_cast<char>(value);
}

void put_key(std::string& to, int field, Wire wire) {
  put_varint(to, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}

void put_bytes(std::string& to, int field, std::string_view bytes) {
  put_key(to, field, Wire::bytes);
  put_varint(to, bytes.size());
  to += bytes;
}

// The checksum that record files have: rotated, and shifted by a constant, so that data with checksums in it is told
// from its own.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// "events.out.tfevents.1763600000.host.1234.0": readers look for the middle, and sort by the seconds.
fs::path new_event_file(const fs::path& folder) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::error_code error;
  fs::create_directories(folder, error);
  require_user(!error, "logger.tensorboard_dir={}: {}", folder.string(), error.message());
  for (int counter = 0;; ++counter) {
    fs::path file = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<std::int64_t>(now()),
                                         host[0] == '\0' ? "localhost" : host.data(), getpid(), counter);
    if (!path_exists(file)) return file;
  }
}

}  // namespace

void TensorboardEvents::add_version(double wall_time) {
  event_.clear();
  put_key(event_, 1, Wire::fixed64);
  put_little_endian(event_, std::bit_cast<std::uint64_t>(wall_time));
  put_bytes(event_, 3, "brain.Event:2");
  add_record();
}

void TensorboardEvents::add_start(double wall_time, std::int64_t step) {
  begin(wall_time, step);
  constexpr std::string_view status_is_start("\x08\x01", 2);
  put_bytes(event_, 7, status_is_start);
  add_record();
}

void TensorboardEvents::begin(double wall_time, std::int64_t step) {
  event_.clear();
  summary_.clear();
  put_key(event_, 1, Wire::fixed64);
  put_little_endian(event_, std::bit_cast<std::uint64_t>(wall_time));
  if (step == 0) return;  // protobuf leaves out zeros
  put_key(event_, 2, Wire::varint);
  put_varint(event_, static_cast<std::uint64_t>(step));
}

void TensorboardEvents::scalar(std::string_view tag, float value) {
  value_.clear();
  put_bytes(value_, 1, tag);
  put_key(value_, 2, Wire::fixed32);
  put_little_endian(value_, std::bit_cast<std::uint32_t>(value));
  put_bytes(summary_, 1, value_);
}

void TensorboardEvents::end() {
  put_bytes(event_, 5, summary_);
  add_record();
}

void TensorboardEvents::add_record() {
  const std::size_t begin = records_.size();
  put_little_endian(records_, static_cast<std::uint64_t>(event_.size()));
  put_little_endian(records_, masked_crc(std::string_view(records_).substr(begin)));
  records_ += event_;
  put_little_endian(records_, masked_crc(event_));
}

TensorboardSink::TensorboardSink(const fs::path& folder) : file_(new_event_file(folder), AppendFile::Start::empty) {
  events_.add_version(now());
}

void TensorboardSink::begin(std::int64_t step) {
  if (!started_) events_.add_start(now(), step);
  started_ = true;
  events_.begin(now(), step);
}

void TensorboardSink::end() {
  events_.end();
  file_.append(events_.records());
  events_.clear();
}

void TensorboardSink::scalar(std::string_view name, std::size_t index, double value) {
  tag_ = name;
  tag_ += '/';
  std::array<char, 20> digits{};
  tag_.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), index).ptr);
  events_.scalar(tag_, static_cast<float>(value));
}

// Tables are left out: a curve for each expert of each layer would be thousands.
void TensorboardSink::step(const StepMetrics& metrics) {
  begin(metrics.step);
  for (const Metric& metric : metrics.values) {
    if (const std::optional<double> value = metrics.maybe(metric.name))
      events_.scalar(metric.name, static_cast<float>(*value));
    else if (const auto* flag = std::get_if<bool>(&metric.value))
      events_.scalar(metric.name, *flag ? 1 : 0);
    else if (const auto* list = std::get_if<std::span<const double>>(&metric.value))
      for (std::size_t i = 0; i < list->size(); ++i) scalar(metric.name, i, (*list)[i]);
  }
  end();
}

void TensorboardSink::eval(const EvalMetrics& metrics) {
  begin(metrics.step);
  events_.scalar("eval_loss", static_cast<float>(metrics.eval_loss));
  for (const SetLoss& set : metrics.sets) {
    tag_ = "eval_loss/";
    tag_ += set.name;
    events_.scalar(tag_, static_cast<float>(set.loss));
  }
  end();
}

}  // namespace tera
