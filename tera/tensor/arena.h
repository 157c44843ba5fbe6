#pragma once
// The planned allocator: a stack allocator of tensors from one slab. A measuring arena has no slab: it gives addresses
// only, and records its peak. That is the memory planner: run the step once on measuring arenas (a dry run), allocate
// peak() bytes, run it again on real ones.
//
//   take  take        mark   take   rewind(mark)
//   [ a ][ b ]         |    [ c ]    |              peak = a + b + c
//
// In debug builds rewound host memory is filled with a pattern, so that a use after rewind is noticed.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/tensor/tensor.h"

namespace tera {

class Arena {
 public:
  static constexpr std::size_t alignment = 256;

  static Arena measuring();
  explicit Arena(std::span<std::byte> slab, std::string_view name = {}, bool on_host = true);

  // The tag says what the memory is for; it shows in plans and in the error when the slab is too small. UserError when
  // a measuring arena is asked for more than can be addressed.
  Tensor take(const Shape& shape, DType dtype, std::string_view tag);

  std::size_t mark() const { return used_; }
  void rewind(std::size_t mark);
  std::size_t peak() const { return peak_; }
  bool is_measuring() const { return measuring_; }

  // While measuring: the bytes of each tag at the moment of the peak; they add up to peak().
  using BytesByTag = std::map<std::string, std::size_t, std::less<>>;
  const BytesByTag& at_peak() const { return used_ == peak_ ? live_ : at_peak_; }

 private:
  Arena() = default;
  struct Taken {
    std::size_t begin, bytes;
    std::string tag;
  };
  std::span<std::byte> slab_;
  std::string name_;
  bool measuring_ = true;  // not the same as an empty slab
  bool on_host_ = false;   // the slab is in host memory
  std::size_t used_ = 0, peak_ = 0;
  std::vector<Taken> taken_;  // used while measuring only, as live_ and at_peak_
  BytesByTag live_, at_peak_;
};

// Rewinds an arena at the end of a scope to its mark at the beginning.
class ScratchScope {
 public:
  explicit ScratchScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ScratchScope() { arena_.rewind(mark_); }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  Arena& arena_;
  std::size_t mark_;
};

constexpr std::size_t align_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace tera
