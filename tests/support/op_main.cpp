// Main of the op tests. --device=cuda plays the same tables on the GPU; without one it leaves with the status that
// CTest takes for "skipped". --plain-products: there, all matrix products by the plain kernels.

#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "tera/backend/cuda/make_cuda.h"
#include "tests/support/gpu.h"

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  testing::InitGoogleTest(&argc, argv);  // takes its own arguments away
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--device=cuda") {
      tera::test::set_played_on(tera::test::PlayedOn::gpu);
    } else if (argument == "--plain-products") {
      tera::test::use_plain_products();
    } else if (argument != "--device=cpu") {
      std::fprintf(stderr, "%s: no such option; there are --device=cpu, --device=cuda and --plain-products\n", argv[i]);
      return 2;
    }
  }
  if (tera::test::played_on() == tera::test::PlayedOn::gpu && !tera::cuda::usable()) {
    std::fputs("skipped: there is no GPU that this program can use\n", stderr);
    return skipped;
  }
  const int status = RUN_ALL_TESTS();
  tera::test::release_gpu();
  return status;
}
