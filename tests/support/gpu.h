#pragma once
// Runs cases on the GPU. A program that was started with --device=cuda (op_main.cpp) runs the tables there instead of
// on the instruction sets of the CPU. Nothing here touches CUDA before it is used.

#include <span>

#include "tera/base/function_ref.h"
#include "tera/ops/ops.h"
#include "tera/tensor/device.h"

namespace tera::test {

enum class TestDevice { cpu, gpu };

// The device that the command line chose.
TestDevice test_device();
void set_test_device(TestDevice where);

// To be called before the GPU is used first: all GEMMs use the plain kernels, since those of libraries cannot be run
// under racecheck.
void use_plain_gemm();

// The ops and memory of the GPU that all tests of this process share; made on first use, since that takes seconds.
Ops& gpu_ops();
Device& gpu_device();
// Frees both; to be called before the end of main, while CUDA is still there.
void release_gpu();

// Makes a call on the GPU: copies the host's memory under the tensors there, points the tensors at the copies, plans
// the call, makes it with exactly the workspace that was planned, and brings the memory back to where it came from.
// Pieces lie between guard bytes, and so does the workspace, which starts as NaN; guards that changed are test
// failures. Tensors that overlap share a piece. A piece begins at a multiple of 256 bytes, plus `shift` of its
// elements.
void call_on_gpu(std::span<Tensor* const> tensors, FunctionRef<void(Ops&)> call, std::int64_t shift = 0);

// Makes the call on the GPU as above, or on the CPU's best instruction set, as the command line says. For tests that
// are not cases.
void call_once(std::span<Tensor* const> tensors, FunctionRef<void(Ops&)> call);

}  // namespace tera::test
