#include "tera/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

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

// A GPU with enough memory, on a host with so many free bytes.
struct SmallHost final : Device {
  explicit SmallHost(std::size_t bytes) : free_on_host(bytes) {}
  std::span<std::byte> allocate(std::size_t bytes) override { return take(device, bytes); }
  std::span<std::byte> allocate_host(std::size_t bytes) override { return take(host, bytes); }
  bool is_host() const override { return false; }
  std::size_t available() const override { return std::size_t{1} << 30; }
  std::size_t host_available() const override { return free_on_host; }
  static std::span<std::byte> take(std::vector<std::byte>& memory, std::size_t bytes) {
    memory.resize(bytes);
    return memory;
  }
  std::size_t free_on_host;
  std::vector<std::byte> device, host;
};

TEST(MemoryPlan, HostMemoryIsPlannedAndRefusedWhenThereIsTooLittle) {
  Stage stage{.chunks = {{}}, .training = plan_alone(one_stage(2)), .evaluation = plan_forward_alone()};
  stage.offload.f_to_w = {"normed"};
  StageMemory measured = StageMemory::measuring(stage);
  measured.chunks[0].host_f_to_w[0].take(shape(1000), DType::u8, "normed");
  measured.offload[static_cast<std::size_t>(OffloadKind::f_to_w)][1].take(shape(1000), DType::u8, "normed");
  MemoryPlan plan;
  plan.add_stage(measured);
  EXPECT_EQ(plan.total(), 2 * 1024u);
  EXPECT_EQ(plan.offloaded_bytes(), 1024u);
  plan.add_saving_bytes(100);
  EXPECT_EQ(plan.host_bytes(), 1124u);

  SmallHost enough(1124);
  const PlannedMemory memory(enough, plan);
  EXPECT_EQ(enough.device.size(), 2 * 1024u);
  EXPECT_EQ(enough.host.size(), 1024u);
  StageMemory bound = memory.stage(measured);
  EXPECT_EQ(bound.chunks[0].host_f_to_w[0].take(shape(1000), DType::u8, "normed").data, enough.host.data());

  SmallHost less(1123), too_little(1023);
  EXPECT_TRUE(contains(message_of<UserError>([&] { PlannedMemory(less, plan); }), "checkpoint.async_save=false"));
  const std::string message = message_of<UserError>([&] { PlannedMemory(too_little, plan); });
  EXPECT_TRUE(contains(message, "needs 1.00 KiB of the host for model.offload_modules, 1 B more than the 1023 B"))
      << message;
  EXPECT_TRUE(too_little.device.empty()) << "nothing is allocated before all is checked";
}

// On a GPU without anything else on the host: the copy is made once training is set up, which is too late to report it.
TEST(MemoryPlan, TheCopyForSavingMustFitTheHostByItself) {
  MemoryPlan plan;
  plan.add_bytes("weights", 256);
  plan.add_saving_bytes(2000);
  SmallHost enough(2000), less(1999);
  EXPECT_NO_THROW(PlannedMemory(enough, plan));
  EXPECT_EQ(message_of<UserError>([&] { PlannedMemory(less, plan); }),
            "checkpoint.async_save needs 1.95 KiB of the host for a copy of what it writes, and the host has 1.95 KiB "
            "left: checkpoint.async_save=false needs no copy");
  EXPECT_TRUE(less.device.empty()) << "nothing is allocated before all is checked";
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
