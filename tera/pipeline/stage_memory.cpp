#include "tera/pipeline/stage_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace tera {
namespace {

struct Lifetime {
  Life life;
  std::string_view name;
  std::vector<Arena> ChunkMemory::*arenas;
  int Pools::*number;
};

constexpr std::array lifetimes{Lifetime{Life::f_to_b, "F to B", &ChunkMemory::f_to_b, &Pools::f_to_b},
                               Lifetime{Life::f_to_w, "F to W", &ChunkMemory::f_to_w, &Pools::f_to_w},
                               Lifetime{Life::b_to_w, "B to W", &ChunkMemory::b_to_w, &Pools::b_to_w}};

struct Single {
  std::string_view name;
  std::unique_ptr<Arena> StageMemory::*arena;
};

constexpr std::array singles{
    Single{"pipeline buffers", &StageMemory::buffers}, Single{"recompute", &StageMemory::replay},
    Single{"scratch beside", &StageMemory::overlapped_scratch}, Single{"scratch", &StageMemory::scratch}};

constexpr std::array<std::string_view, offload_kinds> buffer_names{
    "offload buffers, borders", "offload buffers, F to B", "offload buffers, F to W"};

struct HostLifetime {
  std::string_view name;
  std::vector<Arena> ChunkMemory::*arenas;
  std::vector<Arena> ChunkMemory::*on_device;  // as many
};

constexpr std::array host_lifetimes{HostLifetime{"offloaded, F to B", &ChunkMemory::host_f_to_b, &ChunkMemory::f_to_b},
                                    HostLifetime{"offloaded, F to W", &ChunkMemory::host_f_to_w, &ChunkMemory::f_to_w}};

std::string in_chunk(std::string name, std::size_t chunk, std::size_t chunks) {
  return chunks > 1 ? fmt::format("{}, chunk {}", name, chunk) : name;
}

void add_offload(StageMemory& memory, const OffloadTags& tags) {
  const std::array<bool, offload_kinds> used{tags.x, !tags.f_to_b.empty(), !tags.f_to_w.empty()};
  for (std::size_t kind = 0; kind < offload_kinds; ++kind)
    while (used[kind] && memory.offload[kind].size() < offload_buffers)
      memory.offload[kind].push_back(Arena::measuring());
  for (ChunkMemory& chunk : memory.chunks)
    for (const HostLifetime& lifetime : host_lifetimes)
      while ((chunk.*lifetime.arenas).size() < (chunk.*lifetime.on_device).size())
        (chunk.*lifetime.arenas).push_back(Arena::measuring());
}

}  // namespace

std::string activations_name(Life life, std::size_t chunk, std::size_t chunks) {
  return in_chunk(fmt::format("activations, {}", lifetimes[static_cast<std::size_t>(life)].name), chunk, chunks);
}

StageMemory StageMemory::measuring(const Stage& stage) {
  StageMemory memory;
  memory.chunks.resize(stage.chunks.size());
  stage.for_each_plan([&](const StagePlan& plan) {
    for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk)
      for (const Lifetime& lifetime : lifetimes) {
        auto& arenas = memory.chunks[chunk].*lifetime.arenas;
        while (static_cast<int>(arenas.size()) < plan.chunks[chunk].pools.*lifetime.number)
          arenas.push_back(Arena::measuring());
      }
  });
  for (const Single& single : singles)
    if (single.arena != &StageMemory::overlapped_scratch || stage.overlaps_pairs())
      memory.*single.arena = std::make_unique<Arena>(Arena::measuring());
  if (stage.offload.any()) add_offload(memory, stage.offload);
  return memory;
}

StageMemory StageMemory::bind(MakeArena make, MakeArena make_on_host) const {
  StageMemory memory;
  memory.chunks.resize(chunks.size());
  for (const Lifetime& lifetime : lifetimes)
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      const auto& measured = chunks[chunk].*lifetime.arenas;
      const std::string name = activations_name(lifetime.life, chunk, chunks.size());
      for (std::size_t i = 0; i < measured.size(); ++i)
        (memory.chunks[chunk].*lifetime.arenas).push_back(make(name, i, measured[i]));
    }
  for (const HostLifetime& lifetime : host_lifetimes)
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      const auto& measured = chunks[chunk].*lifetime.arenas;
      const std::string name = in_chunk(std::string(lifetime.name), chunk, chunks.size());
      for (std::size_t i = 0; i < measured.size(); ++i)
        (memory.chunks[chunk].*lifetime.arenas).push_back(make_on_host(name, i, measured[i]));
    }
  for (std::size_t kind = 0; kind < offload_kinds; ++kind)
    for (std::size_t i = 0; i < offload[kind].size(); ++i)
      memory.offload[kind].push_back(make(buffer_names[kind], i, offload[kind][i]));
  for (const Single& single : singles)
    if (const auto& measured = this->*single.arena)
      memory.*single.arena = std::make_unique<Arena>(make(single.name, 0, *measured));
  return memory;
}

StageMemory StageMemory::allocate_on(Device& device) const {
  const auto on_device = [&](std::string_view name, std::size_t, const Arena& measured) {
    return Arena(device.allocate(measured.peak()), name, device.is_host());
  };
  // On other devices a copy may still read host memory that has been given back.
  const auto on_host = [&](std::string_view name, std::size_t, const Arena& measured) {
    return Arena(device.allocate_host(measured.peak()), name, device.is_host());
  };
  return bind(on_device, on_host);
}

void StageMemory::visit(SeeArenas see) const {
  for (const Lifetime& lifetime : lifetimes)
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk)
      see(activations_name(lifetime.life, chunk, chunks.size()), chunks[chunk].*lifetime.arenas);
  for (std::size_t kind = 0; kind < offload_kinds; ++kind)
    if (!offload[kind].empty()) see(buffer_names[kind], offload[kind]);
  for (const Single& single : singles)
    if (const auto& arena = this->*single.arena) see(single.name, {arena.get(), 1});
}

void StageMemory::visit_host(SeeArenas see) const {
  for (const HostLifetime& lifetime : host_lifetimes)
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk)
      if (const auto& arenas = chunks[chunk].*lifetime.arenas; !arenas.empty())
        see(in_chunk(std::string(lifetime.name), chunk, chunks.size()), arenas);
}

}  // namespace tera
