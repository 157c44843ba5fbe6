// Messages about GPUs that cannot be used, and peak rates of GPUs: no GPU is needed.

#include "tera/backend/cuda/runtime/gpu_facts.h"

#include <gtest/gtest.h>

namespace tera::cuda {
namespace {

TEST(GpuFacts, PeakFlopsOfTheSxmPartsAlone) {
  EXPECT_EQ(peak_flops_of("NVIDIA H200"), 989e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(peak_flops_of("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(peak_flops_of("NVIDIA B200"), 2250e12);
  EXPECT_EQ(peak_flops_of("NVIDIA GB200"), 2500e12);
  for (const char* name : {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A100 80GB PCIe",
                           "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090", ""})
    EXPECT_EQ(peak_flops_of(name), 0) << name;
}

TEST(GpuFacts, NoKernelsNamesArchitecturesAndOption) {
  EXPECT_EQ(no_kernels_for("80-real, 90", 7, 5),
            "no kernels for compute capability 7.5: built for 80-real, 90 (-DCMAKE_CUDA_ARCHITECTURES=75 adds it)");
}

TEST(GpuFacts, WhatIsThereAndCannotBeUsedHasAReason) {
  const CudaLibraries libraries{.cublaslt = "13.0.0", .cudnn = ""};
  CudaInfo info{
      .built_in = true, .toolkit = "13.0", .driver = "13.0", .problem = "", .gpus = {{.name = "NVIDIA H200"}}};
  EXPECT_EQ(why_gpu_is_left_aside(info, libraries), "");
  EXPECT_EQ(why_gpu_is_left_aside(info, {}), "cuBLASLt was not found");
  info.gpus[0].problem = "out of memory";
  EXPECT_EQ(why_gpu_is_left_aside(info, libraries), "NVIDIA H200: out of memory");
  info.gpus.clear();
  EXPECT_EQ(why_gpu_is_left_aside(info, libraries), "the driver lists no GPU");
  info.problem = "driver too old";
  EXPECT_EQ(why_gpu_is_left_aside(info, libraries), "driver too old");
  info.driver.clear();  // nothing that could have been meant
  EXPECT_EQ(why_gpu_is_left_aside(info, libraries), "");
}

}  // namespace
}  // namespace tera::cuda
