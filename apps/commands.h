#pragma once
// One function per subcommand, each in apps/<name>_command.cpp: it adds the subcommand with its options to the program
// and sets what to do as its callback. See README.md for the pattern.

#include "apps/command.h"

namespace tera {

void add_train_command(Command app);
void add_plan_command(Command app);
void add_generate_command(Command app);
void add_logits_command(Command app);
void add_export_command(Command app);
void add_import_command(Command app);
void add_config_command(Command app);
void add_bench_command(Command app);
void add_dataset_command(Command app);
void add_merge_command(Command dataset);  // below `dataset`
void add_preprocess_command(Command app);
void add_inspect_command(Command app);
void add_tokenizer_command(Command app);
void add_doctor_command(Command app);

}  // namespace tera
