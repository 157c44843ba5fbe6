// Main of the op tests. --device=cuda runs the same tables on the GPU; without one it exits with the status that CTest
// takes for "skipped". With --plain-products all GEMMs there use the plain kernels. With --every-other-case half of the
// cases of a table are left out, for builds in which each takes long; dtypes, of which there are three, take turns.

#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  testing::InitGoogleTest(&argc, argv);  // removes its own arguments
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--device=cuda") {
      tera::test::set_test_device(tera::test::TestDevice::gpu);
    } else if (argument == "--plain-products") {
      tera::test::use_plain_gemm();
    } else if (argument == "--every-other-case") {
      tera::test::run_every_other_case();
    } else if (argument != "--device=cpu") {
      std::fprintf(
          stderr,
          "%s: no such option; there are --device=cpu, --device=cuda, --plain-products and --every-other-case\n",
          argv[i]);
      return 2;
    }
  }
  if (tera::test::test_device() == tera::test::TestDevice::gpu && !tera::cuda::usable()) {
    std::fputs("skipped: there is no GPU that this program can use\n", stderr);
    return skipped;
  }
  const int status = RUN_ALL_TESTS();
  tera::test::release_gpu();
  return status;
}
