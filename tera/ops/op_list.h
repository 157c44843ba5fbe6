#pragma once
// Every op, one line each. An op is known by the struct of its arguments, declared here and defined in the header of
// its family. Whoever calls or implements an op includes that header, so that a change of it compiles little else.

#include <cstddef>
#include <cstdint>

namespace tera {

template <class... Args>
struct OpList {
  static constexpr std::size_t size = sizeof...(Args);
};

using AllOps = OpList<struct GemmArgs,                   // gemm.h
                      struct ColumnSumArgs,              //
                      struct GemmActivationArgs,         // gemm_activation.h
                      struct GemmActivationBackArgs,     //
                      struct GroupedGemmArgs,            // grouped_gemm.h
                      struct GroupedWeightGradientArgs,  //
                      struct NormArgs,                   // norm.h
                      struct NormBackArgs,               //
                      struct RopeArgs,                   // rope.h
                      struct LatentHeadsArgs,            // latent_heads.h
                      struct LatentHeadsBackArgs,        //
                      struct AttentionArgs,              // attention.h
                      struct AttentionBackArgs,          //
                      struct MergeAttentionArgs,         //
                      struct ActivationArgs,             // pointwise.h
                      struct ActivationBackArgs,         //
                      struct DropoutArgs,                //
                      struct GroupRowsArgs,              // expert_rows.h
                      struct PermuteArgs,                //
                      struct UnpermuteArgs,              //
                      struct RouteArgs,                  // route.h
                      struct RouteBackArgs,              //
                      struct BalanceLossArgs,            //
                      struct ExpertBiasArgs,             //
                      struct EmbeddingArgs,              // embedding.h
                      struct EmbeddingBackArgs,          //
                      struct CrossEntropyArgs,           // loss.h
                      struct CrossEntropyStatsArgs,      //
                      struct SumArgs,                    //
                      struct SumSquaresArgs,             // optim.h
                      struct ClipArgs,                   //
                      struct ScaleLossArgs,              //
                      struct CountStepArgs,              //
                      struct AdamArgs,                   //
                      struct SgdArgs,                    //
                      struct CopyArgs,                   // copy.h
                      struct FillArgs,                   //
                      struct NormalArgs,                 // random.h
                      struct CombineArgs>;               // combine.h

// What a profile counts a call as. An op that is not bound by memory says so beside its arguments:
// `static constexpr OpKind op_kind = OpKind::gemm;`.
enum class OpKind : std::uint8_t { gemm, attention, memory_bound, optimizer, transfer, count };

}  // namespace tera
