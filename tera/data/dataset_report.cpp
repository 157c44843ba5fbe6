#include "tera/data/dataset_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <limits>

namespace tera {
namespace {

// 0, 1, 2-3, 4-7, ...: as many as an int64 has bits.
std::size_t bin_of(std::int64_t length) { return std::bit_width(static_cast<std::uint64_t>(length)); }

LengthHistogram::Bin empty_bin(std::size_t index) {
  if (index == 0) return {0, 0, 0};
  const std::int64_t first = std::int64_t{1} << (index - 1);
  return {first, first + (first - 1), 0};
}

std::string range_of(const LengthHistogram::Bin& bin) {
  return bin.first == bin.last ? fmt::format("{}", bin.first) : fmt::format("{}-{}", bin.first, bin.last);
}

// A bar in eighths of a cell; a value above 0 has at least one eighth.
std::string bar_of(std::int64_t value, std::int64_t largest, int columns) {
  constexpr std::array<std::string_view, 8> parts{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double fraction = static_cast<double>(value) / static_cast<double>(std::max<std::int64_t>(largest, 1));
  const int eighths = value == 0 ? 0 : std::max(1, static_cast<int>(fraction * columns * 8));
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += parts[static_cast<std::size_t>(eighths % 8)];
  return bar + std::string(static_cast<std::size_t>(columns - (eighths + 7) / 8), ' ');
}

}  // namespace

IdRange id_range(const IndexedDataset& data) {
  constexpr std::size_t bytes_at_a_time = std::size_t{64} << 20;
  IdRange range;
  visit_token_type(data.token_type(), [&](auto like) {
    using T = decltype(like);
    T smallest = 0, largest = 0;
    std::size_t seen = 0;
    for (std::int64_t i = 0; i < data.sequences(); ++i) {
      const PackedArray<T> ids(data.stored(i));
      for (std::size_t k = 0; k < ids.size(); ++k) {
        smallest = std::min(smallest, ids[k]);
        largest = std::max(largest, ids[k]);
      }
      seen += ids.bytes().size();
      if (seen < bytes_at_a_time) continue;
      data.forget_pages();
      seen = 0;
    }
    if (data.tokens() > 0) range = {static_cast<std::int64_t>(smallest), static_cast<std::int64_t>(largest)};
  });
  return range;
}

LengthHistogram document_lengths(const IndexedDataset& data) {
  LengthHistogram histogram;
  std::array<std::int64_t, 65> counts{};
  histogram.shortest = data.documents() == 0 ? 0 : std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < static_cast<std::size_t>(data.documents()); ++i) {
    std::int64_t length = 0;
    for (std::int64_t s = data.document_index()[i]; s < data.document_index()[i + 1]; ++s)
      length += data.lengths()[static_cast<std::size_t>(s)];
    ++counts[bin_of(length)];
    histogram.shortest = std::min(histogram.shortest, length);
    histogram.longest = std::max(histogram.longest, length);
  }
  if (data.documents() == 0) return histogram;
  for (std::size_t bin = bin_of(histogram.shortest); bin <= bin_of(histogram.longest); ++bin) {
    histogram.bins.push_back(empty_bin(bin));
    histogram.bins.back().documents = counts[bin];
  }
  histogram.mean = static_cast<double>(data.tokens()) / static_cast<double>(data.documents());
  return histogram;
}

std::string draw(const LengthHistogram& histogram, int columns) {
  std::size_t width = 6;
  std::int64_t largest = 0;
  for (const auto& bin : histogram.bins) {
    width = std::max(width, range_of(bin).size());
    largest = std::max(largest, bin.documents);
  }
  std::string text = fmt::format("{:>{}}  documents\n", "tokens", width);
  for (const auto& bin : histogram.bins)
    fmt::format_to(std::back_inserter(text), "{:>{}}  {} {}\n", range_of(bin), width,
                   bar_of(bin.documents, largest, columns), bin.documents);
  return text;
}

}  // namespace tera
