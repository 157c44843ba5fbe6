#include "tera/backend/cpu/expert_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/kernels/expert_rows.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/base/error.h"
#include "tera/ops/expert_rows.h"

namespace tera::cpu {
namespace {

using Index = std::int64_t;

// The group of choice i, or -1 where its expert belongs to another rank.
class Chosen {
 public:
  explicit Chosen(const GroupRowsArgs& args)
      : experts_(args.experts.as<std::int32_t>()), first_(args.first_expert), groups_(args.groups()) {}
  Index group(Index i) const {
    const Index g = experts_[i] - first_;
    return g >= 0 && g < groups_ ? g : -1;
  }

 private:
  const std::int32_t* experts_;
  Index first_, groups_;
};

// starts [G+1]: starts[g] becomes the number of choices of groups before g.
void count_choices(const GroupRowsArgs& args, std::int32_t* starts) {
  const Chosen chosen(args);
  std::fill_n(starts, args.groups() + 1, 0);
  for (Index i = 0; i < args.choices(); ++i)
    if (const Index g = chosen.group(i); g >= 0) ++starts[g + 1];
  for (Index g = 0; g < args.groups(); ++g) starts[g + 1] += starts[g];
}

// Assigns a row to each choice, group after group, in order, up to the capacity. next [G] is where a group begins, and
// becomes where it ends.
void assign_rows(const GroupRowsArgs& args, std::int32_t* next, std::int32_t* sources, Index capacity) {
  const Chosen chosen(args);
  auto* places = args.places.as<std::int32_t>();
  for (Index i = 0; i < args.choices(); ++i) {
    const Index g = chosen.group(i);
    const std::int32_t row = g < 0 ? -1 : next[g]++;
    const bool has_row = row >= 0 && row < capacity;
    places[i] = has_row ? row : -1;
    if (has_row) sources[row] = static_cast<std::int32_t>(i);
  }
}

// Moves the `capacity` choices of a group with the highest weights to its front, in order; the others are dropped.
void keep_heaviest(std::int32_t* begin, std::int32_t* end, Index capacity, const float* weights) {
  const auto heavier = [weights](std::int32_t a, std::int32_t b) {
    const float left = weights[a], right = weights[b];
    if (std::isnan(left) != std::isnan(right)) return std::isnan(right);
    return left == right || std::isnan(left) ? a < b : left > right;
  };
  std::nth_element(begin, begin + capacity, end, heavier);
  std::sort(begin, begin + capacity);
}

// Fills the `capacity` rows of a group with its choices in order, then with padding.
void fill_group(const GroupRowsArgs& args, Index g, std::int32_t* begin, std::int32_t* end) {
  const Index capacity = args.capacity, kept = std::min<Index>(capacity, end - begin);
  if (args.weights && end - begin > capacity) keep_heaviest(begin, end, capacity, args.weights.as<float>());
  auto* places = args.places.as<std::int32_t>();
  auto* sources = args.sources.as<std::int32_t>() + g * capacity;
  for (Index i = 0; i < kept; ++i) {
    sources[i] = begin[i];
    places[begin[i]] = static_cast<std::int32_t>(g * capacity + i);
  }
  std::fill(sources + kept, sources + capacity, padding_row);
  for (const std::int32_t* dropped = begin + kept; dropped < end; ++dropped) places[*dropped] = -1;
}

const ExpertRowKernels& kernels(Isa isa) {
  return pick(isa, []<Isa i>() -> const ExpertRowKernels& { return expert_row_kernels<i>(); });
}

}  // namespace

const std::int32_t* checked_rows(const Tensor& numbers, std::int64_t rows, std::string_view op) {
  const auto* number = numbers.as<std::int32_t>();
  for (Index i = 0; i < count(numbers.shape); ++i)
    require(number[i] < rows, "{}: {} is no row, there are {}", op, number[i], rows);
  return number;
}

// Begins and ends of groups; with a capacity also their choices.
std::size_t CpuWorkspaceRules::workspace(const GroupRowsArgs& args) const {
  const Index numbers = 2 * args.groups() + 1 + (args.capacity > 0 ? args.choices() : 0);
  return static_cast<std::size_t>(numbers) * sizeof(std::int32_t);
}

// One thread is enough: a choice takes a few instructions, while its row takes thousands elsewhere.
template <>
void CpuOps::compute(const GroupRowsArgs& args) {
  const Index groups = args.groups(), rows = args.sources.dim(0), capacity = args.capacity;
  auto* starts = reinterpret_cast<std::int32_t*>(workspace(CpuWorkspaceRules(pool_.size()).workspace(args)).data());
  std::int32_t *next = starts + groups + 1, *choices = next + groups;
  auto* offsets = args.offsets.as<std::int32_t>();
  auto* sources = args.sources.as<std::int32_t>();
  count_choices(args, starts);
  std::copy_n(starts, groups, next);
  assign_rows(args, next, capacity > 0 ? choices : sources, capacity > 0 ? args.choices() : rows);
  if (capacity > 0)
    for (Index g = 0; g < groups; ++g) fill_group(args, g, choices + starts[g], choices + starts[g + 1]);

  Index overflow = 0;
  for (Index g = 0; g <= groups; ++g)
    offsets[g] = static_cast<std::int32_t>(capacity > 0 ? g * capacity : std::min<Index>(starts[g], rows));
  for (Index g = 0; g < groups; ++g) overflow += std::max(0, starts[g + 1] - starts[g] - (offsets[g + 1] - offsets[g]));
  std::fill(sources + offsets[groups], sources + rows, unused_row);
  if (args.overflow) *args.overflow.as<std::int32_t>() = static_cast<std::int32_t>(overflow);
}

template <>
void CpuOps::compute(const PermuteArgs& args) {
  const std::int32_t* sources = checked_rows(args.sources, args.x.dim(0) * args.topk, "permute");
  const std::size_t row_bytes = static_cast<std::size_t>(args.x.dim(1)) * size_of(args.x.dtype);
  const auto* x = static_cast<const std::byte*>(args.x.data);
  auto* y = static_cast<std::byte*>(args.y.data);
  run_blocks(pool_, row_blocks(args.y.dim(0), args.y.dim(1)), [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      std::byte* to = y + static_cast<std::size_t>(row) * row_bytes;
      if (sources[row] >= 0)
        std::memcpy(to, x + static_cast<std::size_t>(sources[row] / args.topk) * row_bytes, row_bytes);
      else if (sources[row] == padding_row)
        std::memset(to, 0, row_bytes);
    }
  });
}

template <>
void CpuOps::compute(const UnpermuteArgs& args) {
  const UnpermuteForward forward{.x = args.x.data,
                                 .residual = args.residual.data,
                                 .places = checked_rows(args.places, args.x.dim(0), "unpermute"),
                                 .y = args.y.data,
                                 .topk = args.places.dim(1),
                                 .width = args.y.dim(1)};
  const auto kernel = kernels(isa_).unpermute[static_cast<int>(args.y.dtype)];
  run_blocks(pool_, row_blocks(args.y.dim(0), forward.width * (forward.topk + 1)),
             [&](Index begin, Index end) { kernel(forward, begin, end); });
}

}  // namespace tera::cpu
