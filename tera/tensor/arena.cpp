#include "tera/tensor/arena.h"

#include <cstring>

#include "tera/base/error.h"

namespace tera {
namespace {

// The first address of measuring arenas, so that none is null. It is never dereferenced.
constexpr std::size_t imaginary_base = std::size_t{1} << 20;
// Distances between addresses are signed. A multiple of the alignment, so rounding up cannot pass it.
constexpr std::size_t max_bytes = (std::size_t{1} << 63) - imaginary_base;
static_assert(max_bytes % Arena::alignment == 0);

}  // namespace

Arena Arena::measuring() { return {}; }

Arena::Arena(std::span<std::byte> slab, std::string_view name, bool on_host)
    : slab_(slab), name_(name), measuring_(false), on_host_(on_host) {}

Tensor Arena::take(const Shape& shape, DType dtype, std::string_view tag) {
  const auto elements = static_cast<std::size_t>(count(shape));
  const std::size_t begin = used_;
  std::size_t bytes = 0;
  const bool countable = !__builtin_mul_overflow(elements, size_of(dtype), &bytes) && bytes <= max_bytes - begin;
  const std::size_t end = begin + align_up(bytes, alignment);
  if (!countable && is_measuring())  // sizes come from the user; a run only takes what was planned
    fail_user("'{}' {}{} needs more memory than can be addressed", tag, name_of(dtype), to_string(shape));
  if (is_measuring()) {
    taken_.push_back({begin, end - begin, std::string(tag)});
    live_[taken_.back().tag] += end - begin;
  } else if (!countable || end > slab_.size()) {
    fail("'{}' {}{} does not fit the planned '{}': {} of {} bytes are in use", tag, name_of(dtype), to_string(shape),
         name_, begin, slab_.size());
  }
  used_ = end;
  peak_ = used_ > peak_ ? used_ : peak_;
  void* data = is_measuring() ? reinterpret_cast<void*>(imaginary_base + begin) : slab_.data() + begin;  // NOLINT
  return make_tensor(data, shape, dtype);
}

void Arena::rewind(std::size_t mark) {
  require(mark <= used_, "'{}' rewound forward, from {} to {}", name_, used_, mark);
  if (is_measuring() && mark < used_ && used_ == peak_) at_peak_ = live_;  // between rewinds memory only grows
  while (!taken_.empty() && taken_.back().begin >= mark) {
    live_[taken_.back().tag] -= taken_.back().bytes;
    taken_.pop_back();
  }
#ifndef NDEBUG
  if (on_host_ && mark < used_) std::memset(slab_.data() + mark, 0xCB, used_ - mark);
#endif
  used_ = mark;
}

}  // namespace tera
