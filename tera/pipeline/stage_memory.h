#pragma once
// The arenas of a pipeline stage: per chunk and microbatch in flight one of each lifetime, one for the buffers between
// virtual stages, and two that are empty between actions. With activation offloading also its device buffers, and
// arenas of host memory.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/base/function_ref.h"
#include "tera/pipeline/offload.h"
#include "tera/pipeline/stage.h"
#include "tera/tensor/device.h"
#include "tera/tensor/stash.h"

namespace tera {

struct ChunkMemory {
  std::vector<Arena> f_to_b, f_to_w, b_to_w;    // as many as the plans need
  std::vector<Arena> host_f_to_b, host_f_to_w;  // as many as above, or none
};

struct StageMemory {
  static StageMemory measuring(const Stage& stage);

  // These arenas over real memory: `make` gives each one, by the name of its kind and its number among these.
  using MakeArena = FunctionRef<Arena(std::string_view name, std::size_t copy, const Arena& measured)>;
  StageMemory bind(MakeArena make) const { return bind(make, make); }
  StageMemory bind(MakeArena make, MakeArena make_on_host) const;
  StageMemory allocate_on(Device& device) const;  // each as large as it has measured

  // Every kind with its name, in the order of the plan: activations by lifetime and chunk, "offload buffers" by kind
  // with activation offloading, then "pipeline buffers", "recompute", "scratch beside" where an F overlaps a B,
  // "scratch".
  using SeeArenas = FunctionRef<void(std::string_view name, std::span<const Arena> arenas)>;
  void visit(SeeArenas see) const;
  void visit_host(SeeArenas see) const;  // "offloaded, F to B" and "offloaded, F to W", by chunk

  std::vector<ChunkMemory> chunks;
  OffloadBuffers offload;
  std::unique_ptr<Arena> buffers, replay, scratch;
  std::unique_ptr<Arena> overlapped_scratch;  // for an F that overlaps a B, which has the other one; or null
};

// "activations, F to B", followed by ", chunk 1" where a rank has several.
std::string activations_name(Life life, std::size_t chunk, std::size_t chunks);

}  // namespace tera
