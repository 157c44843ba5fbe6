#pragma once
// The log of a run: lines on the console and in a file, and on a terminal one live status line below them. Lines of
// ordinary length are formatted on the stack, without allocating; a line that cannot be written (full disk, closed
// output) is a UserError.

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "tera/base/file.h"

namespace tera {

class Log {
 public:
  struct Options {
    int console = 1;               // file descriptor; negative for none
    std::optional<bool> terminal;  // whether the console can redraw a line; detected when not given
    int columns = 0;               // width of the terminal; queried each time when 0
  };
  Log() : Log(Options{}) {}
  explicit Log(const Options& options);
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log();

  // From here on lines also go to this file, without the status line.
  void open_file(const std::filesystem::path& path, AppendFile::Start start = AppendFile::Start::empty);

  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    line(Level::info, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    line(Level::warn, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    line(Level::error, format, fmt::make_format_args(args...));
  }
  // Writes to the file only, for text that the console shows in another form.
  template <class... Args>
  void file_only(fmt::format_string<Args...> format, Args&&... args) {
    line(Level::file_only, format, fmt::make_format_args(args...));
  }

  // Replaces the status line, cut to the terminal's width; without a terminal it does nothing. Later lines appear above
  // it. `text` may have colour codes.
  void status(std::string_view text);
  void clear_status();

  bool terminal() const { return terminal_; }
  int columns() const;  // 80 where there is no terminal

 private:
  enum class Level : std::uint8_t { info, warn, error, file_only };
  void line(Level level, fmt::string_view format, fmt::format_args args);
  void write_line(Level level, std::string_view text);
  void write_console(std::string_view text);
  void draw_status();

  int console_;
  bool terminal_, console_worked_ = false;
  int columns_;
  std::optional<AppendFile> file_;
  std::array<char, 1024> status_{};
  std::size_t status_size_ = 0;
  bool status_drawn_ = false;
  std::mutex mutex_;
};

}  // namespace tera
