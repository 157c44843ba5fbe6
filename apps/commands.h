#pragma once
// One function per subcommand, each in apps/<name>_command.cpp: it adds the subcommand with its options to the program
// and sets what to do as its callback. See README.md for the pattern.

#include <CLI/CLI.hpp>

namespace tera {

void add_train_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_logits_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_import_command(CLI::App& app);
void add_config_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_dataset_command(CLI::App& app);
void add_merge_command(CLI::App& dataset);  // below `dataset`
void add_preprocess_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_tokenizer_command(CLI::App& app);
void add_doctor_command(CLI::App& app);

}  // namespace tera
