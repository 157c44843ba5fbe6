#pragma once
// Parts of progress lines, without allocating.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

namespace tera {

// Text of bounded length on the stack; text beyond its capacity is cut.
template <std::size_t capacity>
class TextBuffer {
 public:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    const auto result = fmt::format_to_n(data_.data() + size_, capacity - size_, format, std::forward<Args>(args)...);
    size_ = std::min(size_ + result.size, capacity);
  }
  std::string_view text() const { return {data_.data(), size_}; }

 private:
  std::array<char, capacity> data_;
  std::size_t size_ = 0;
};
using ProgressLine = TextBuffer<900>;

// [days ][hours:]minutes:seconds
inline void put_duration(ProgressLine& line, double seconds) {
  const auto s = static_cast<std::int64_t>(std::clamp(std::ceil(seconds), 0.0, 1e9));
  if (s >= 86400) line.put("{}d ", s / 86400);
  if (s >= 3600) line.put("{:02}:", s / 3600 % 24);
  line.put("{:02}:{:02}", s / 60 % 60, s % 60);
}

// A progress bar with eighths of a cell, so that it moves smoothly.
inline void put_bar(ProgressLine& line, double fraction) {
  constexpr int cells = 24;
  constexpr std::array<std::string_view, 8> parts{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * cells * 8);
  const auto& part = parts[static_cast<std::size_t>(eighths % 8)];
  line.put("\x1b[36m");
  for (int i = 0; i < eighths / 8; ++i) line.put("█");
  line.put("{}\x1b[90m", part);
  for (int i = eighths / 8 + (part.empty() ? 0 : 1); i < cells; ++i) line.put("·");
  line.put("\x1b[0m");
}

}  // namespace tera
