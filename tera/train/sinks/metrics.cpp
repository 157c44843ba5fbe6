#include "tera/train/sinks/metrics.h"

#include <fmt/core.h>

#include <cmath>
#include <numeric>
#include <span>
#include <string_view>

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
  JsonLine& maybe(std::string_view name, const std::optional<double>& value) {
    return value ? number(name, *value) : *this;
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

std::optional<double> StepMetrics::mtp_loss() const {
  if (mtp_losses.empty()) return {};
  return std::accumulate(mtp_losses.begin(), mtp_losses.end(), 0.0) / static_cast<double>(mtp_losses.size());
}

// The line has capacity for as many validation sets, with names as long, as the config allows, and for MoE metrics.
JsonlSink::JsonlSink(const std::filesystem::path& path, AppendFile::Start start, const Capacity& capacity)
    : file_(path, start) {
  constexpr std::size_t plain = 16384, widest_number = 32, widest_count = 16;
  line_.resize(plain + 2 * capacity.layers * widest_number + capacity.loads * widest_count);
}

void JsonlSink::step(const StepMetrics& m) {
  JsonLine line(line_);
  line.integer("step", m.step).number("loss", m.loss).number("grad_norm", m.grad_norm).number("lr", m.lr);
  line.integer("tokens", m.tokens).number("step_ms", m.step_ms).number("data_ms", m.data_ms);
  line.number("tokens_per_s", m.tokens_per_s).number("tflops_per_device", m.tflops_per_device);
  m.mfu ? line.number("mfu", *m.mfu) : line.null("mfu");
  if (m.global_batch_size) line.integer("global_batch_size", *m.global_batch_size);
  if (m.loss_scale) line.number("loss_scale", *m.loss_scale);
  line.boolean("skipped", m.skipped);
  line.table("cp_degrees", m.cp_degrees, 2).maybe("padding", m.padding);
  line.maybe("mtp_loss", m.mtp_loss());
  if (m.mtp_losses.size() > 1) line.numbers("mtp_losses", m.mtp_losses);
  const ExpertMetrics& experts = m.experts;
  line.maybe("load_balancing_loss", experts.load_balancing_loss);
  line.maybe("seq_load_balancing_loss", experts.seq_load_balancing_loss);
  line.maybe("global_load_balancing_loss", experts.global_load_balancing_loss);
  line.maybe("z_loss", experts.z_loss);
  line.numbers("moe.load_max_over_mean", experts.load_max_over_mean);
  line.numbers("moe.unused_experts", experts.unused_experts);
  line.table("moe.expert_load", experts.load, experts.experts);
  file_.append(line.finish());
}

void JsonlSink::eval(const EvalMetrics& m) {
  JsonLine line(line_);
  line.integer("step", m.step).number("eval_loss", m.eval_loss).integer("tokens", m.tokens);
  for (const SetLoss& set : m.sets) line.number("eval_loss/", set.loss, set.name);
  file_.append(line.finish());
}

}  // namespace tera
