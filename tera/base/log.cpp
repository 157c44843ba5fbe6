#include "tera/base/log.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tera/base/error.h"

namespace tera {
namespace {

constexpr std::string_view erase_line = "\r\x1b[K";
constexpr std::string_view reset_color = "\x1b[0m";
constexpr std::string_view console_name = "the console";

// Bytes of the text that fit `columns` cells: colour codes count as none, each UTF-8 character as one.
std::size_t fitting_prefix(std::string_view text, int columns) {
  int used = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '\x1b') {
      i = std::min(text.find('m', i), text.size() - 1) + 1;
      continue;
    }
    if (used++ == columns) return i;
    do ++i;
    while (i < text.size() && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80);
  }
  return text.size();
}

// The pieces of text between colour codes (ESC [ ... m), which are left out of files.
template <class Take>
void for_each_plain_piece(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const std::size_t begin = text.find("\x1b[");
    take(text.substr(0, begin));
    if (begin == std::string_view::npos) return;
    const std::size_t end = text.find('m', begin);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

}  // namespace

Log::Log(const Options& options)
    : console_(options.console),
      terminal_(options.terminal.value_or(options.console >= 0 && ::isatty(options.console) == 1)),
      columns_(options.columns) {}

Log::~Log() {
  try {
    clear_status();
  } catch (const UserError&) {  // the console is gone; the next write reports it
  }
}

void Log::open_file(const std::filesystem::path& path, AppendFile::Start start) {
  const std::lock_guard lock(mutex_);
  file_.emplace(path, start);
}

int Log::columns() const {
  if (columns_ > 0) return columns_;
  winsize size{};
  const bool known = terminal_ && ::ioctl(console_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void Log::line(Level level, fmt::string_view format, fmt::format_args args) {
  std::array<char, 2048> buffer;
  const auto [end, size] = fmt::vformat_to_n(buffer.data(), buffer.size(), format, args);
  if (size <= buffer.size())
    write_line(level, {buffer.data(), size});
  else
    write_line(level, fmt::vformat(format, args));  // long text such as tables, never in a training step
}

void Log::write_line(Level level, std::string_view text) {
  const std::string_view name = level == Level::warn ? "warning: " : level == Level::error ? "error: " : "";
  const std::lock_guard lock(mutex_);
  // One write for each destination, so that lines of several processes do not mix; the text is assembled on the stack.
  fmt::basic_memory_buffer<char, 2560> out;
  const auto add = [&out](std::string_view part) { out.append(part.data(), part.data() + part.size()); };
  if (file_) {
    add(name);
    for_each_plain_piece(text, add);
    add("\n");
    file_->append({out.data(), out.size()});
    out.clear();
  }
  if (level == Level::file_only || console_ < 0) return;
  if (status_drawn_) add(erase_line);
  if (terminal_ && !name.empty()) add(level == Level::error ? "\x1b[31m" : "\x1b[33m");
  add(name);
  if (terminal_ && !name.empty()) add(reset_color);
  add(text);
  add("\n");
  status_drawn_ = false;
  write_console({out.data(), out.size()});
  draw_status();
}

// A run with a log file continues when its console goes away (a closed terminal, `| head`). A console that never worked
// is an error that is reported at once.
void Log::write_console(std::string_view text) {
  if (console_ < 0) return;
  try {
    write_all(console_, text, console_name);
    console_worked_ = true;
  } catch (const UserError& error) {
    if (!file_ || !console_worked_) throw;
    console_ = -1;
    terminal_ = false;
    status_size_ = 0;
    file_->append(error.what());
    file_->append("; from here on this file alone goes on\n");
  }
}

void Log::status(std::string_view text) {
  if (!terminal_) return;
  const std::lock_guard lock(mutex_);
  text = text.substr(0, fitting_prefix(text, columns() - 1));  // the last cell would wrap on some terminals
  if (text.size() > status_.size()) text = {};
  std::ranges::copy(text, status_.begin());
  status_size_ = text.size();
  draw_status();
}

void Log::draw_status() {
  if (status_size_ == 0) return;
  fmt::basic_memory_buffer<char, 1280> out;
  for (const std::string_view part : {erase_line, std::string_view(status_.data(), status_size_), reset_color})
    out.append(part.data(), part.data() + part.size());
  status_drawn_ = true;
  write_console({out.data(), out.size()});
}

void Log::clear_status() {
  const std::lock_guard lock(mutex_);
  status_size_ = 0;
  if (!status_drawn_) return;
  status_drawn_ = false;
  write_console(erase_line);
}

}  // namespace tera
