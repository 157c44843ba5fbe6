#pragma once
// Options of the commands that compute with a trained model: --model DIR, the device, and the number of ranks.

#include <optional>
#include <string>
#include <vector>

#include "apps/choice.h"
#include "apps/command.h"
#include "tera/base/error.h"
#include "tera/infer/open_model.h"

namespace tera {

struct ModelOptions {
  std::string model, device = "auto";
  std::vector<std::string> layout;
  std::optional<int> ranks;
  std::int64_t threads = 0;
  bool unverified = false;

  void add_to(Command command) {
    command.add_option("--model,--load", model, "a checkpoint, a folder of checkpoints, or a Hugging Face folder")
        .required()
        .type_name("DIR");
    command.add_option("--device", device, "auto, cpu or cuda").capture_default_str();
    command.add_option("--threads", threads, "CPU threads; 0: all cores").capture_default_str();
    command.add_option("--ranks", ranks, "ranks to run as threads of this process").type_name("N");
    command.add_flag("--no-verify", unverified,
                     "of a checkpoint: read only the weights, and leave the checksums of its files out");
    command.add_option("layout", layout, "how the model is cut over ranks; without it, it is not")
        .type_name("dist.key=value");
  }
  Setup setup(const OpenModel& open, const Launch& launch) const {
    require_user(threads >= 0 && threads <= 1024, "--threads is {}; it must be from 0 (all cores) to 1024", threads);
    return open.setup(
        {.device = parse_choice<DeviceChoice>("--device", device), .threads = threads, .overrides = layout}, launch);
  }
  // The files that one rank verifies.
  std::optional<VerifyShard> verified(int rank, const Launch& launch) const {
    if (unverified) return std::nullopt;
    return VerifyShard{.rank = rank, .ranks = launch.world};
  }
};

}  // namespace tera
