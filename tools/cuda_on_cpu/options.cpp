#include "tools/cuda_on_cpu/options.h"

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tools/cuda_on_cpu/stop.h"

namespace cuda_on_cpu {
namespace {

std::string_view value_of(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

[[noreturn]] void refuse(const char* name) {
  stop("%s=%s is not understood; see tools/cuda_on_cpu/options.h", name, std::string(value_of(name)).c_str());
}

template <class Number>
void read_number(const char* name, std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) refuse(name);
}

// "random:SEED", where that is what the variable says.
bool read_seed(const char* name, unsigned& seed) {
  constexpr std::string_view random = "random:";
  const std::string_view text = value_of(name);
  if (!text.starts_with(random)) return false;
  read_number(name, text.substr(random.size()), seed);
  return true;
}

Options from_environment() {
  Options all;
#if defined(CUDA_ON_CPU_ASAN) || defined(CUDA_ON_CPU_TSAN)
  all.stack_bytes = std::size_t{512} << 10;
#else
  all.stack_bytes = std::size_t{128} << 10;
#endif
  constexpr const char *order = "CUDA_ON_CPU_ORDER", *streams = "CUDA_ON_CPU_STREAMS", *strict = "CUDA_ON_CPU_STRICT",
                       *devices = "CUDA_ON_CPU_DEVICES", *memory = "CUDA_ON_CPU_MEMORY_MB";
  if (const std::string_view text = value_of(order); text == "reverse")
    all.order = Order::reverse;
  else if (read_seed(order, all.seed))
    all.order = Order::random;
  else if (!text.empty() && text != "forward")
    refuse(order);
  if (const std::string_view text = value_of(streams); text == "eager")
    all.streams = StreamOrder::eager;
  else if (read_seed(streams, all.stream_seed))
    all.streams = StreamOrder::random;
  else if (!text.empty() && text != "lazy")
    refuse(streams);
  if (const std::string_view text = value_of(strict); text == "1")
    all.strict = true;
  else if (!text.empty() && text != "0")
    refuse(strict);
  if (const std::string_view text = value_of(devices); !text.empty()) read_number(devices, text, all.devices);
  if (const std::string_view text = value_of(memory); !text.empty()) {
    read_number(memory, text, all.memory_bytes);
    all.memory_bytes <<= 20;
  }
  return all;
}

}  // namespace

const Options& options() {
  static const Options all = from_environment();
  return all;
}

}  // namespace cuda_on_cpu
