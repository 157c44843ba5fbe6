// A checkpoint of format version 1, made by the program of that time: weights alone, unsharded, GPT-2's [in,out].

#include <gtest/gtest.h>

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/setup/load.h"
#include "tera/setup/resolve.h"
#include "tera/train/backend.h"
#include "tera/train/training_step.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

const std::string root = source_path("tests/golden/data/checkpoint_v1");

TEST(CheckpointVersion1, IsRead) {
  const Checkpoint checkpoint(root);
  EXPECT_EQ(checkpoint.step(), 3);
  checkpoint.verify();
  const LoadedConfig loaded = load_config_text(checkpoint.config_yaml(), "manifest");
  const tera::Setup setup = resolve(loaded.config, Purpose::train, &loaded.origins);
  Backend backend = make_backend({.device = DeviceChoice::cpu, .threads = 1});
  TrainingStep step(setup);
  step.bind(backend);
  step.load_checkpoint(checkpoint, Checkpoint::Take::weights);
  const SafetensorsFile file(checkpoint.folder() / "model.safetensors");
  std::size_t transposed_count = 0, compared = 0;
  for (const Param* param : step.params().by_name())
    for (const Part& part : param->spec.parts) {
      const std::vector<float> stored = file.read_floats(part.name),
                               found = read_part(*backend.ops, param->value, part);
      ASSERT_EQ(found.size(), stored.size());
      const std::int64_t columns = part.global.rank == 2 ? part.global[1] : 1, rows = part.global[0];
      for (std::int64_t i = 0; i < rows * columns; ++i, ++compared) {
        const std::int64_t at = part.transposed ? i % columns * rows + i / columns : i;
        ASSERT_EQ(found[static_cast<std::size_t>(i)], stored[static_cast<std::size_t>(at)]) << part.name << " " << i;
      }
      transposed_count += part.transposed ? 1 : 0;
    }
  EXPECT_EQ(transposed_count, 4u);
  EXPECT_GT(compared, 2500u);
  EXPECT_TRUE(contains(
      message_of<UserError>([&] { step.load_checkpoint(checkpoint, Checkpoint::Take::everything); }),
      "has weights alone (a checkpoint of format version 1), and a run cannot go on from it; checkpoint.load="));
}

}  // namespace
}  // namespace tera::test
