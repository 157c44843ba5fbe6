#include "tera/comm/agree.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tera/base/joined.h"

namespace tera {
namespace {

// The hash that most ranks have; of equally frequent ones, that of the lowest rank.
std::int64_t most_frequent(const std::vector<std::int64_t>& hashes) {
  std::map<std::int64_t, int> counts;
  for (const std::int64_t hash : hashes) ++counts[hash];
  const auto rarer = [&](std::int64_t a, std::int64_t b) { return counts[a] < counts[b]; };
  return *std::max_element(hashes.begin(), hashes.end(), rarer);
}

// "rank 3", "ranks 0, 1, 2", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more".
std::string list_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t shown = 8;
  const auto end = std::next(ranks.begin(), static_cast<std::ptrdiff_t>(std::min(ranks.size(), shown)));
  std::string text =
      fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", joined(std::span(ranks.begin(), end), ", "));
  if (ranks.size() > shown) text += fmt::format(" and {} more", ranks.size() - shown);
  return text;
}

Tensor take_buffer(const Comm& group, Device& device) {
  const std::int64_t ranks = group.size();
  const std::span<std::byte> memory = device.allocate(static_cast<std::size_t>(ranks) * sizeof(std::int64_t));
  return make_tensor(memory.data(), shape(ranks), DType::i64);
}

}  // namespace

std::vector<std::int64_t> gather_numbers(Comm& group, Ops& ops, Device& device, std::int64_t local) {
  return gather_numbers(group, ops, take_buffer(group, device), local);
}

std::vector<std::int64_t> gather_numbers(Comm& group, Ops& ops, const Tensor& buffer, std::int64_t local) {
  const std::int64_t ranks = group.size();
  const Tensor full = buffer.rows(0, ranks);
  const Tensor part = full.rows(group.rank(), group.rank() + 1);
  ops.from_host(std::as_bytes(std::span(&local, 1)), part);
  ops.wait(group.all_gather(part, full, ops.record()));
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks));
  ops.to_host(full, std::as_writable_bytes(std::span(all)));
  return all;
}

void agree(Comm& group, Ops& ops, Device& device, std::string_view what, std::uint64_t hash) {
  agree(group, ops, take_buffer(group, device), what, hash);
}

void agree(Comm& group, Ops& ops, const Tensor& buffer, std::string_view what, std::uint64_t hash) {
  const std::vector<std::int64_t> hashes = gather_numbers(group, ops, buffer, static_cast<std::int64_t>(hash));
  const std::int64_t expected = most_frequent(hashes);
  std::vector<int> alike, others;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    (hashes[rank] == expected ? alike : others).push_back(static_cast<int>(rank));
  if (others.empty()) return;
  fail_user(
      "{} is not the same on all ranks: that of {} differs from that of {}; start all with the same files and "
      "arguments",
      what, list_ranks(others), list_ranks(alike));
}

}  // namespace tera
