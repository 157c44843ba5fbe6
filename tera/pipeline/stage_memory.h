#pragma once
// The arenas a rank of a pipeline works in: per chunk and microbatch in flight one of each lifetime, one for what
// crosses between virtual stages, and two that are empty between actions. Where activations wait on the host: buffers
// that they pass through, and memory of the host.

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

  // The same arenas over real memory: `make` gives each one, by the name of its kind and its number among these.
  using MakeArena = FunctionRef<Arena(std::string_view name, std::size_t copy, const Arena& measured)>;
  StageMemory bind(MakeArena make) const { return bind(make, make); }
  StageMemory bind(MakeArena make, MakeArena make_on_host) const;
  StageMemory allocate_on(Device& device) const;  // each as large as it has measured

  // Every kind with its name, in the order of the plan: activations by lifetime and chunk, "offload buffers" by what
  // passes through them where there are such, then "pipeline buffers", "recompute", "scratch beside" where an F is
  // played together with a B, "scratch".
  using SeeArenas = FunctionRef<void(std::string_view name, std::span<const Arena> arenas)>;
  void visit(SeeArenas see) const;
  void visit_host(SeeArenas see) const;  // "offloaded, F to B" and "offloaded, F to W", by chunk

  std::vector<ChunkMemory> chunks;
  OffloadBuffers offload;
  std::unique_ptr<Arena> buffers, replay, scratch;
  std::unique_ptr<Arena> scratch_beside;  // of an F, while a B has the other one; or none
};

// "activations, F to B", with ", chunk 1" behind it where a rank has several.
std::string activations_name(Life life, std::size_t chunk, std::size_t chunks);

}  // namespace tera
