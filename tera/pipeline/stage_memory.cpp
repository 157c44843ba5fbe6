#include "tera/pipeline/stage_memory.h"

#include <fmt/format.h>

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

constexpr std::array singles{Single{"pipeline buffers", &StageMemory::buffers},
                             Single{"recompute", &StageMemory::replay}, Single{"scratch", &StageMemory::scratch}};

}  // namespace

std::string activations_name(Life life, std::size_t chunk, std::size_t chunks) {
  const std::string name = fmt::format("activations, {}", lifetimes[static_cast<std::size_t>(life)].name);
  return chunks > 1 ? fmt::format("{}, chunk {}", name, chunk) : name;
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
  for (const Single& single : singles) memory.*single.arena = std::make_unique<Arena>(Arena::measuring());
  return memory;
}

StageMemory StageMemory::bind(MakeArena make) const {
  StageMemory memory;
  memory.chunks.resize(chunks.size());
  for (const Lifetime& lifetime : lifetimes)
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      const auto& measured = chunks[chunk].*lifetime.arenas;
      const std::string name = activations_name(lifetime.life, chunk, chunks.size());
      for (std::size_t i = 0; i < measured.size(); ++i)
        (memory.chunks[chunk].*lifetime.arenas).push_back(make(name, i, measured[i]));
    }
  for (const Single& single : singles)
    memory.*single.arena = std::make_unique<Arena>(make(single.name, 0, *(this->*single.arena)));
  return memory;
}

StageMemory StageMemory::allocate_on(Device& device) const {
  return bind([&](std::string_view name, std::size_t, const Arena& measured) {
    return Arena(device.allocate(measured.peak()), name, device.is_host());
  });
}

void StageMemory::visit(FunctionRef<void(std::string_view, std::span<const Arena>)> see) const {
  for (const Lifetime& lifetime : lifetimes)
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk)
      see(activations_name(lifetime.life, chunk, chunks.size()), chunks[chunk].*lifetime.arenas);
  for (const Single& single : singles) see(single.name, {(this->*single.arena).get(), 1});
}

}  // namespace tera
