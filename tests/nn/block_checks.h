#pragma once
// Checks of what every block must hold, whatever it computes. A block's tests call these for each configuration.

#include "tera/nn/sublayer.h"
#include "tests/support/block_harness.h"

namespace tera::test {

// Gradients of x and of every parameter against finite differences of forward.
void check_gradients(const BlockSetup& setup);
// W may come late: any order of two microbatches that keeps the order of their B and of their W gives the same bits.
void check_split_backward(const BlockSetup& setup);
// Gradients of two microbatches add up.
void check_accumulation(const BlockSetup& setup);
// Real peaks are the planned ones, and no stash is left.
void check_memory(const BlockSetup& setup);
// One, two and three threads give the same bits.
void check_threads(const BlockSetup& setup);
// 16-bit storage gives the fp32 results but for rounding.
void check_rounded(const BlockSetup& setup, DType compute);

// A sublayer, or those of a layer one after the other, on one rank.
MakeBlock make_sublayer(const SublayerSpec& spec);
MakeBlock make_sublayers(const std::vector<SublayerSpec>& specs);

inline void check_block(const BlockSetup& setup) {
  check_gradients(setup);
  check_split_backward(setup);
  check_accumulation(setup);
  check_memory(setup);
  check_threads(setup);
  for (const DType compute : {DType::bf16, DType::f16}) check_rounded(setup, compute);
}

// Compares bits, so that NaN equals itself and 0 differs from -0; says where the first difference is.
void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want, const char* what);

// Outputs and gradients of two blocks with the same parameters, whose memory may differ.
void expect_same_results(const BlockSetup& setup, const BlockSetup& other);

}  // namespace tera::test
