#include <cstring>

#include "tera/backend/cpu/blocks.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/kernels/latent_heads.h"
#include "tera/ops/latent_heads.h"

namespace tera::cpu {
namespace {

// Sizes in bytes of the parts of an MLA head: the rotary part of its key, the rest (nope), and its values.
struct Sizes {
  Sizes(const Tensor& both, const Tensor& shared, const Tensor& k)
      : rotary(bytes(shared, shared.dim(1))),
        head(bytes(k, k.dim(2))),
        nope(head - rotary),
        kv(bytes(both, both.dim(2))),
        values(kv - nope),
        rotary_stride(bytes(shared, shared.stride[0])) {}
  static std::size_t bytes(const Tensor& of, std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(of.dtype);
  }
  std::size_t rotary, head, nope, kv, values, rotary_stride;
};

}  // namespace

template <>
void CpuOps::compute(const LatentHeadsArgs& args) {
  const Sizes size(args.kv, args.rotary, args.k);
  const auto heads = static_cast<std::size_t>(args.k.dim(1));
  run_blocks(pool_, row_blocks(args.k.dim(0), args.k.dim(1) * args.k.dim(2)),
             [&](std::int64_t begin, std::int64_t end) {
               for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
                 const auto* rotary = static_cast<const std::byte*>(args.rotary.data) + row * size.rotary_stride;
                 for (std::size_t n = row * heads; n < (row + 1) * heads; ++n) {
                   const auto* kv = static_cast<const std::byte*>(args.kv.data) + n * size.kv;
                   auto* k = static_cast<std::byte*>(args.k.data) + n * size.head;
                   auto* v = static_cast<std::byte*>(args.v.data) + n * size.head;
                   std::memcpy(k, kv, size.nope);
                   std::memcpy(k + size.nope, rotary, size.rotary);
                   std::memcpy(v, kv + size.nope, size.values);
                   std::memset(v + size.values, 0, size.head - size.values);
                 }
               }
             });
}

template <>
void CpuOps::compute(const LatentHeadsBackArgs& args) {
  const Sizes size(args.dkv, args.drotary, args.dk);
  const auto heads = static_cast<std::size_t>(args.dk.dim(1));
  const auto sum_heads = pick(isa_, []<Isa isa>() -> const LatentHeadKernels& {
                           return latent_head_kernels<isa>();
                         }).sum_heads[static_cast<int>(args.dk.dtype)];
  const Blocks blocks = row_blocks(args.dk.dim(0), args.dk.dim(1) * args.dk.dim(2));
  run_blocks(pool_, blocks, [&](std::int64_t begin, std::int64_t end) {
    for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
      const auto* dk = static_cast<const std::byte*>(args.dk.data) + row * heads * size.head;
      const auto* dv = static_cast<const std::byte*>(args.dv.data) + row * heads * size.head;
      auto* dkv = static_cast<std::byte*>(args.dkv.data) + row * heads * size.kv;
      for (std::size_t n = 0; n < heads; ++n) {
        std::memcpy(dkv + n * size.kv, dk + n * size.head, size.nope);
        std::memcpy(dkv + n * size.kv + size.nope, dv + n * size.head, size.values);
      }
      sum_heads({.x = dk + size.nope,
                 .out = static_cast<std::byte*>(args.drotary.data) + row * size.rotary_stride,
                 .heads = args.dk.dim(1),
                 .step = args.dk.dim(2),
                 .width = args.drotary.dim(1)});
    }
  });
}

}  // namespace tera::cpu
