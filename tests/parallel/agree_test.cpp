// Ranks that were started differently are found before they do harm.

#include "tera/comm/agree.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/base/hash.h"
#include "tera/comm/world.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

// Each rank has a hash of its own.
void agree_on(const std::vector<std::uint64_t>& hashes) {
  run_threads(static_cast<int>(hashes.size()), {.timeout = std::chrono::seconds(60)}, [&](RankHandle& rank_handle) {
    cpu::CpuDevice device;
    cpu::CpuOps ops(1, cpu::best_isa());
    const auto world = rank_handle.join(ops);
    agree(*world, ops, device, "the configuration", hashes[static_cast<std::size_t>(rank_handle.rank())]);
  });
}

TEST(Agree, RanksThatAreAlike) {
  const std::uint64_t large = ~std::uint64_t{0} - 5;
  EXPECT_NO_THROW(agree_on({large}));
  EXPECT_NO_THROW(agree_on({large, large, large}));
}

TEST(Agree, NamesTheRanksThatDifferFromTheMost) {
  const auto message_for = [](const std::vector<std::uint64_t>& hashes) {
    const std::string message = message_of<UserError>([&] { agree_on(hashes); });
    EXPECT_FALSE(contains(message, "\n")) << "told once: " << message;
    return message;
  };
  EXPECT_TRUE(contains(message_for({7, 7, 8, 7}),
                       "the configuration is not the same on all ranks: that of rank 2 differs from that of ranks 0, "
                       "1, 3;"));
  EXPECT_TRUE(contains(message_for({8, 7, 7, 9}), "that of ranks 0, 3 differs from that of ranks 1, 2;"));
  EXPECT_TRUE(contains(message_for({8, 7}), "that of rank 1 differs from that of rank 0;"));
  // Hashes that differ in one bit, at either end.
  EXPECT_TRUE(contains(message_for({6, 7, 6}), "rank 1 differs"));
  EXPECT_TRUE(contains(message_for({6, 6, 6 | std::uint64_t{1} << 63}), "rank 2 differs"));
  std::vector<std::uint64_t> many(12);
  std::iota(many.begin(), many.end(), 0);
  many[1] = 0;
  EXPECT_TRUE(
      contains(message_for(many), "that of ranks 2, 3, 4, 5, 6, 7, 8, 9 and 2 more differs from that of ranks 0, 1;"));
}

// Published values of FNV-1a.
TEST(HashText, IsFnv1a) {
  EXPECT_EQ(hash_text(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(hash_text("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(hash_text("foobar"), 0x85944171f73967e8ULL);
}

}  // namespace
}  // namespace tera::test
