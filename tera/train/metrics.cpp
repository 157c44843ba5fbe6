#include "tera/train/metrics.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <string_view>

namespace tera {
namespace {

// Builds one JSON line in place. A line has a dozen fields of bounded width, so it always fits.
template <std::size_t capacity>
class JsonLine {
 public:
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
  void key(std::string_view name, std::string_view of_what = {}) {
    put("{}\"{}{}\":", size_ == 0 ? '{' : ',', name, of_what);
  }

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    const auto result =
        fmt::format_to_n(buffer_.data() + size_, buffer_.size() - size_, format, std::forward<Args>(args)...);
    size_ = std::min(size_ + result.size, buffer_.size());
  }

  std::array<char, capacity> buffer_{};
  std::size_t size_ = 0;
};

}  // namespace

void JsonlSink::step(const StepMetrics& m) {
  JsonLine<1024> line;
  line.integer("step", m.step).number("loss", m.loss).number("grad_norm", m.grad_norm).number("lr", m.lr);
  line.integer("tokens", m.tokens).number("step_ms", m.step_ms).number("data_ms", m.data_ms);
  line.number("tokens_per_s", m.tokens_per_s).number("tflops_per_device", m.tflops_per_device);
  m.mfu ? line.number("mfu", *m.mfu) : line.null("mfu");
  if (m.global_batch_size) line.integer("global_batch_size", *m.global_batch_size);
  if (m.loss_scale) line.number("loss_scale", *m.loss_scale);
  line.boolean("skipped", m.skipped);
  file_.append(line.finish());
}

void JsonlSink::eval(const EvalMetrics& m) {
  JsonLine<16384> line;  // for as many sets, with names as long, as the config allows
  line.integer("step", m.step).number("eval_loss", m.eval_loss).integer("tokens", m.tokens);
  for (const SetLoss& set : m.sets) line.number("eval_loss/", set.loss, set.name);
  file_.append(line.finish());
}

}  // namespace tera
