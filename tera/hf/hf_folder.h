#pragma once
// A model folder as Hugging Face's transformers writes it and the hub publishes it:
//
//   config.json                         the shape
//   model.safetensors                   all tensors, or
//   model.safetensors.index.json        the shard of each tensor
//
// Files may be links, as in the hub's cache. Tensors have the names and the [out,in] order of our parameters: names of
// a base model get their prefix, GPT-2's [in,out] is transposed, fused experts are split into one tensor per expert,
// tied heads, copies of tables in MTP layers and buffers are dropped, and FP8 tensors are dequantized to f32.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tera/checkpoint/safetensors_source.h"
#include "tera/config/family.h"
#include "tera/config/sections/model.h"

namespace tera {

struct FamilyNames;

// Whether the folder looks like a Hugging Face folder and not like a checkpoint of ours.
bool is_hf_folder(const std::filesystem::path& folder);

class HfFolder final : public SafetensorsSource {
 public:
  explicit HfFolder(std::filesystem::path folder, Families families = built_in_families());

  const std::filesystem::path& folder() const { return folder_; }
  const ModelConfig& model() const { return model_; }              // has every size that the files determine
  const std::string& config_text() const { return config_text_; }  // text of config.json
  std::size_t file_count() const { return files_.size(); }
  // MTP layers come with copies of the embedding table and the head, which are not used. For users of these layers:
  // UserError if a copy differs from the model's table. Reads both completely.
  void check_copies() const;
  std::string where() const override { return folder_.string(); }

 private:
  struct Stored {
    const SafetensorsFile* file = nullptr;
    std::string name;  // in the file
  };
  struct Copy {
    Stored copy, table;
  };
  static bool equal(const Stored& one, const Stored& other);  // compares floats; UserError for other dtypes
  void find_files();
  void read_index(const std::filesystem::path& index);
  void list_stored();
  void check_index() const;
  void pair_scales();
  void resolve_head();
  void resolve_mtp_layers();
  void drop_copy(const std::string& copy, const std::string& original);
  bool add_fused(const FamilyNames& names, const std::string& name, const Stored& stored);
  void add_each_expert(const std::string& prefix, const Stored& stored, const Shape& wanted,
                       const std::vector<std::string>& parts);
  void check_once(const std::string& name, const Stored& stored) const;

  std::filesystem::path folder_;
  std::string config_text_;
  ModelConfig model_;
  std::map<std::string, std::string> index_;  // tensor to file name; empty: there is one file
  std::vector<const SafetensorsFile*> files_;
  std::map<std::string, Stored> stored_;  // by our names
  std::vector<Copy> copies_;
};

}  // namespace tera
