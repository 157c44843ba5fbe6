#pragma once
// The training data of a run and how samples are made of it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tera/base/enum_names.h"
#include "tera/config/sections/blend_part.h"

namespace tera {

struct Field;

// Order of training samples. single: the order of the dataset, once; cyclic: epochs, each with its own shuffle.
enum class DataloaderType : std::uint8_t { single, cyclic };
enum class DatasetKind : std::uint8_t { mock, text, indexed, sft };

// Chat template: the text of a message of each role, with {content} in place of its content.
struct ChatFormat {
  std::string system = "<|im_start|>system\n{content}<|im_end|>\n";
  std::string user = "<|im_start|>user\n{content}<|im_end|>\n";
  std::string assistant = "<|im_start|>assistant\n{content}<|im_end|>\n";

  static std::span<const Field> fields();
  bool operator==(const ChatFormat&) const = default;
};

struct DatasetConfig {
  DatasetKind kind = DatasetKind::mock;
  std::vector<std::string> data_path;
  std::vector<BlendPart> blend;
  std::vector<std::string> train_data_path;
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string split = "969,30,1";
  std::string data_cache_path;
  double mid_level_dataset_surplus = 0.005;
  bool full_validation = false;
  bool multiple_validation_sets = false;
  std::vector<std::string> validation_set_names;
  bool add_extra_token_to_sequence = true;
  bool drop_last_partial_validation_sequence = true;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  DataloaderType dataloader_type = DataloaderType::single;
  bool data_sharding = true;
  std::int64_t num_workers = 2;
  ChatFormat chat_format;

  static std::span<const Field> fields();
  bool operator==(const DatasetConfig&) const = default;
};

template <>
struct EnumNames<DatasetKind> {
  static constexpr std::array values{std::pair{DatasetKind::mock, std::string_view("mock")},
                                     std::pair{DatasetKind::text, std::string_view("text")},
                                     std::pair{DatasetKind::indexed, std::string_view("indexed")},
                                     std::pair{DatasetKind::sft, std::string_view("sft")}};
};

template <>
struct EnumNames<DataloaderType> {
  static constexpr std::array values{std::pair{DataloaderType::single, std::string_view("single")},
                                     std::pair{DataloaderType::cyclic, std::string_view("cyclic")}};
};

}  // namespace tera
