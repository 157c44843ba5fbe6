// The GPU as a queue with memory: tickets, transfers through the staging ring, asynchronous results, allocation.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tera/backend/cuda/runtime/cuda_device.h"
#include "tera/backend/cuda/runtime/cuda_info.h"
#include "tera/base/error.h"
#include "tera/ops/copy.h"
#include "tera/tensor/arena.h"
#include "tests/support/gpu.h"

namespace tera::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t MiB = std::size_t{1} << 20;

// Bytes without a short period, so that a misplaced piece is seen.
Bytes some_bytes(std::size_t count, std::uint32_t seed) {
  Bytes bytes(count);
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

Tensor bytes_tensor(std::span<std::byte> memory) { return make_tensor(memory.data(), shape(memory.size()), DType::u8); }

Bytes read(const Tensor& tensor) {
  Bytes bytes(tensor.bytes());
  gpu_ops().to_host(tensor, bytes);
  return bytes;
}

TEST(CudaQueue, TicketsAreFinishedInOrderAndReportTime) {
  Ops& ops = gpu_ops();
  const Tensor large = bytes_tensor(gpu_device().allocate(256 * MiB));
  ops.finish(Ticket{});  // a ticket that was never recorded: nothing to wait for
  const Ticket before = ops.record();
  for (int i = 0; i < 20; ++i) ops(FillArgs{.out = large, .value = 1});
  const Ticket between = ops.record();
  for (int i = 0; i < 20; ++i) ops(FillArgs{.out = large, .value = 2});
  const Ticket after = ops.record();
  EXPECT_LT(before.id, between.id);
  EXPECT_LT(between.id, after.id);
  ops.finish(after);
  ops.finish(before);  // passed long ago
  const double first = ops.milliseconds(before, between), second = ops.milliseconds(between, after);
  EXPECT_GT(first, 0.5);  // 5 GiB: more than any GPU writes in this time
  EXPECT_GT(second, 0.5);
  EXPECT_NEAR(ops.milliseconds(before, after), first + second, 0.01);
  EXPECT_EQ(read(large.rows(0, 1))[0], std::byte{2});
}

TEST(CudaQueue, ATicketThatIsTooOldIsRefused) {
  Ops& ops = gpu_ops();
  const Ticket old = ops.record();
  Ticket last = old;
  for (int i = 0; i < 300; ++i) last = ops.record();  // more than the 256 that are kept
  EXPECT_THROW(ops.finish(old), Error);
  ops.finish(last);
}

TEST(CudaTransfers, LargerThanTheRing) {
  const Bytes sent = some_bytes(40 * MiB + 13, 1);
  const Tensor tensor = bytes_tensor(gpu_device().allocate(sent.size()));
  Bytes buffer = sent;
  gpu_ops().from_host(buffer, tensor);
  std::ranges::fill(buffer, std::byte{0});  // the caller's bytes may be reused at once
  EXPECT_TRUE(read(tensor) == sent);
}

// Many small ones that wrap around the ring several times, while the GPU is kept busy so that copies pile up.
TEST(CudaTransfers, ManySmallOnes) {
  constexpr std::size_t count = 20000, stride = 4096;
  Ops& ops = gpu_ops();
  const Tensor busy = bytes_tensor(gpu_device().allocate(256 * MiB));
  const Tensor tensor = bytes_tensor(gpu_device().allocate(count * stride));
  Bytes expected(count * stride), buffer(stride);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = 1 + i * 7919 % stride;
    const Bytes bytes = some_bytes(size, static_cast<std::uint32_t>(i));
    std::memcpy(buffer.data(), bytes.data(), size);
    std::memcpy(expected.data() + i * stride, bytes.data(), size);
    if (i % 1000 == 0) ops(FillArgs{.out = busy, .value = 1});
    const auto begin = static_cast<std::int64_t>(i * stride);
    ops.from_host(std::span(buffer).first(size), tensor.rows(begin, begin + static_cast<std::int64_t>(size)));
  }
  EXPECT_TRUE(read(tensor) == expected);
}

// The copy has the bytes at its point in the queue, not those at the moment in which the host reads.
TEST(CudaTransfers, LaterMeansWhatWasThereThen) {
  Ops& ops = gpu_ops();
  const Tensor tensor = bytes_tensor(gpu_device().allocate(64));
  const std::span<std::byte> host = gpu_device().allocate_host(128);
  ops(FillArgs{.out = tensor, .value = 1});
  ops.to_host_later(tensor, host.first(64));
  ops(FillArgs{.out = tensor, .value = 2});
  ops.to_host_later(tensor, host.last(64));
  ops(FillArgs{.out = tensor, .value = 3});
  ops.finish(ops.record());
  EXPECT_TRUE(std::ranges::all_of(host.first(64), [](std::byte b) { return b == std::byte{1}; }));
  EXPECT_TRUE(std::ranges::all_of(host.last(64), [](std::byte b) { return b == std::byte{2}; }));
  EXPECT_EQ(read(tensor)[0], std::byte{3});
}

// Each copy waits for the queue's point and for the other direction's; the queue waits for the copies only where asked.
TEST(CudaTransfers, BesideTheQueueInTheOrderOfTheirPoints) {
  constexpr std::size_t bytes = 64 * MiB, rounds = 20;
  Ops& ops = gpu_ops();
  const Tensor tensor = bytes_tensor(gpu_device().allocate(bytes)), back = bytes_tensor(gpu_device().allocate(bytes));
  std::vector<std::span<std::byte>> hosts(2);
  for (auto& host : hosts) host = gpu_device().allocate_host(bytes);
  CopyPoints sent[2], fetched;
  for (std::size_t i = 0; i < rounds; ++i) {
    const auto value = static_cast<double>(i + 1);
    ops.wait(sent[(i + 1) % 2].end);  // it reads the tensor
    ops(FillArgs{.out = tensor, .value = value});
    sent[i % 2] = ops.to_host_overlapped(
        {.tensor = tensor, .host = hosts[i % 2], .after = ops.record(), .and_after = fetched.end});
    fetched = ops.from_host_overlapped(
        {.tensor = back, .host = hosts[i % 2], .after = ops.record(), .and_after = sent[i % 2].end});
    ops.wait(fetched.end);
    const Bytes got = read(back);
    const auto wrong = std::ranges::count_if(
        got, [&](std::byte b) { return b != static_cast<std::byte>(static_cast<unsigned char>(value)); });
    ASSERT_EQ(wrong, 0) << "round " << i << ": " << wrong << " of " << bytes << " bytes";
  }
  EXPECT_GT(ops.milliseconds(fetched.begin, fetched.end), 0);
  EXPECT_NE(fetched.end.timeline, static_cast<Timeline*>(&ops));
  EXPECT_NE(fetched.end.timeline, sent[0].end.timeline);
}

TEST(CudaMemory, WhatIsAllocatedIsMissingAfterwards) {
  constexpr std::size_t bytes = 1024 * MiB;
  const std::size_t before = gpu_device().available();
  EXPECT_GT(before, bytes);
  EXPECT_LT(before, cuda::query_cuda().gpus.at(0).memory_bytes);
  {
    cuda::CudaDevice device(0);
    EXPECT_FALSE(device.is_host());
    EXPECT_EQ(device.allocate(bytes).size(), bytes);
    EXPECT_NEAR(static_cast<double>(before - device.available()), static_cast<double>(bytes), 64.0 * MiB);
  }
  EXPECT_NEAR(static_cast<double>(gpu_device().available()), static_cast<double>(before), 64.0 * MiB);
}

TEST(CudaMemory, IsZeroedAndAligned) {
  constexpr std::size_t bytes = 64 * MiB + 5;
  for (int round = 0; round < 2; ++round) {  // the second one gets what the first one left
    cuda::CudaDevice device(0);
    const Tensor tensor = bytes_tensor(device.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % Arena::alignment, 0u);
    EXPECT_TRUE(std::ranges::all_of(read(tensor), [](std::byte b) { return b == std::byte{0}; })) << round;
    gpu_ops()(FillArgs{.out = tensor, .value = 255});
    gpu_ops().finish(gpu_ops().record());
  }
}

TEST(CudaMemory, TooMuchIsAnError) {
  cuda::CudaDevice device(0);
  EXPECT_THROW(device.allocate(std::size_t{1} << 50), UserError);
  EXPECT_EQ(device.allocate(256).size(), 256u);  // the device works as before
  EXPECT_TRUE(device.allocate(0).empty());
}

}  // namespace
}  // namespace tera::test
