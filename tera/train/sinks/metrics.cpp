#include "tera/train/sinks/metrics.h"

#include <fmt/core.h>

#include <cmath>
#include <span>
#include <string_view>
#include <type_traits>

#include "tera/base/error.h"

namespace tera {
namespace {

// Builds one JSON line in place. A line has fields of bounded width, so it always fits a buffer of the sum of the
// widths.
class JsonLine {
 public:
  explicit JsonLine(std::span<char> buffer) : buffer_(buffer) {}

  JsonLine& integer(std::string_view name, std::int64_t value) {
    key(name);
    put("{}", value);
    return *this;
  }
  JsonLine& boolean(std::string_view name, bool value) {
    key(name);
    put("{}", value);
    return *this;
  }
  JsonLine& number(std::string_view name, double value, std::string_view of_what = {}) {
    key(name, of_what);
    value_of(value);
    return *this;
  }
  JsonLine& numbers(std::string_view name, std::span<const double> values) {
    if (values.empty()) return *this;
    key(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      put("{}", i == 0 ? '[' : ',');
      value_of(values[i]);
    }
    put("]");
    return *this;
  }
  // A list of lists of `columns` each.
  JsonLine& table(std::string_view name, std::span<const std::int32_t> values, std::size_t columns) {
    if (values.empty()) return *this;
    key(name);
    for (std::size_t i = 0; i < values.size(); ++i)
      put("{}{}", i == 0 ? "[[" : i % columns == 0 ? "],[" : ",", values[i]);
    put("]]");
    return *this;
  }
  JsonLine& null(std::string_view name) {
    key(name);
    put("null");
    return *this;
  }
  std::string_view finish() {
    put("}}\n");
    return {buffer_.data(), size_};
  }

 private:
  void value_of(double value) {
    if (std::isnan(value)) {
      put("\"nan\"");
    } else if (std::isinf(value)) {
      put("{}", value > 0 ? "\"inf\"" : "\"-inf\"");
    } else {
      const std::size_t begin = size_;
      put("{}", value);  // the shortest text that reads back to the same bits
      const std::string_view text(buffer_.data() + begin, size_ - begin);
      if (text.find_first_of(".e") == std::string_view::npos) put(".0");
    }
  }
  void key(std::string_view name, std::string_view of_what = {}) {
    put("{}\"{}{}\":", size_ == 0 ? '{' : ',', name, of_what);
  }

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    const auto result =
        fmt::format_to_n(buffer_.data() + size_, buffer_.size() - size_, format, std::forward<Args>(args)...);
    size_ = std::min(size_ + result.size, buffer_.size());
  }

  std::span<char> buffer_;
  std::size_t size_ = 0;
};

}  // namespace

const Metric* StepMetrics::find(std::string_view name) const {
  for (const Metric& metric : values)
    if (metric.name == name) return &metric;
  return nullptr;
}

std::optional<double> StepMetrics::maybe(std::string_view name) const {
  const Metric* metric = find(name);
  if (!metric) return {};
  if (const auto* integer = std::get_if<std::int64_t>(&metric->value)) return static_cast<double>(*integer);
  const auto* number = std::get_if<double>(&metric->value);
  return number ? std::optional(*number) : std::nullopt;
}

double StepMetrics::number(std::string_view name) const {
  const std::optional<double> value = maybe(name);
  require(value.has_value(), "the metrics of a step have no number '{}'", name);
  return *value;
}

bool StepMetrics::is_set(std::string_view name) const {
  const Metric* metric = find(name);
  const auto* flag = metric ? std::get_if<bool>(&metric->value) : nullptr;
  return flag && *flag;
}

namespace {

constexpr std::size_t plain_line = 16384;  // as many validation sets, with names as long, as the config allows

// The bytes that a metric takes at most, its name and the punctuation around it included.
std::size_t max_width(const Metric& metric) {
  constexpr std::size_t widest_number = 32, widest_count = 16, punctuation = 8;
  const auto width = [&](const auto& value) -> std::size_t {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::span<const double>>)
      return value.size() * widest_number;
    else if constexpr (std::is_same_v<Value, MetricTable>)
      return value.values.size() * widest_count;
    else
      return widest_number;
  };
  return metric.name.size() + punctuation + std::visit(width, metric.value);
}

void put(JsonLine& line, const Metric& metric) {
  const auto put_value = [&](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::monostate>)
      line.null(metric.name);
    else if constexpr (std::is_same_v<Value, double>)
      line.number(metric.name, value);
    else if constexpr (std::is_same_v<Value, std::int64_t>)
      line.integer(metric.name, value);
    else if constexpr (std::is_same_v<Value, bool>)
      line.boolean(metric.name, value);
    else if constexpr (std::is_same_v<Value, std::span<const double>>)
      line.numbers(metric.name, value);
    else
      line.table(metric.name, value.values, value.columns);
  };
  std::visit(put_value, metric.value);
}

}  // namespace

JsonlSink::JsonlSink(const std::filesystem::path& path, AppendFile::Start start)
    : file_(path, start), line_(plain_line) {}

void JsonlSink::step(const StepMetrics& m) {
  std::size_t needed = 64;  // the step and the end of the line
  for (const Metric& metric : m.values) needed += max_width(metric);
  if (needed > line_.size()) line_.resize(needed);
  JsonLine line(line_);
  line.integer("step", m.step);
  for (const Metric& metric : m.values) put(line, metric);
  file_.append(line.finish());
}

void JsonlSink::eval(const EvalMetrics& m) {
  JsonLine line(line_);
  line.integer("step", m.step).number("eval_loss", m.eval_loss).integer("tokens", m.tokens);
  for (const SetLoss& set : m.sets) line.number("eval_loss/", set.loss, set.name);
  file_.append(line.finish());
}

}  // namespace tera
