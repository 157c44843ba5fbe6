#include "tera/train/memory_plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "tera/base/error.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

Arena measured(std::int64_t bytes) {
  Arena arena = Arena::measuring();
  arena.take(shape(bytes), DType::u8, "bytes");
  return arena;
}

TEST(MemoryPlan, AddsUpItemsAndCopies) {
  MemoryPlan plan;
  plan.add("one", measured(1));
  plan.add_pool("three", std::array{measured(1), measured(300), measured(2)});
  plan.add_bytes("rounded", 257);
  EXPECT_EQ(plan.item("three").copies, 3u);
  EXPECT_EQ(plan.total(), 256u + 3 * 512 + 512);
}

TEST(MemoryPlan, NeverWrapsAround) {
  const auto refused = [](const MemoryPlan& plan) {
    return contains(message_of<UserError>([&] { plan.total(); }), "more memory than can be addressed");
  };
  MemoryPlan sum;
  for (const char* name : {"a", "b", "c", "d"}) {
    EXPECT_EQ(sum.total() >> 62, sum.items().size());
    sum.add(name, measured(1LL << 62));
  }
  EXPECT_TRUE(refused(sum)) << "four quarters of 2^64 are not nothing";
  MemoryPlan product;
  product.add_pool("pool", std::array{measured(1LL << 62), measured(1), measured(1), measured(1)});
  EXPECT_TRUE(refused(product));
  EXPECT_THROW(sum.add_bytes("workspace", std::numeric_limits<std::size_t>::max()), UserError);
}

}  // namespace
}  // namespace tera::test
