#pragma once
// A model folder as Hugging Face's transformers writes it and the hub publishes it:
//
//   config.json                         the shape
//   model.safetensors                   all tensors; else
//   model.safetensors.index.json        which of the shards each tensor is in
//
// Files may be links, as in the hub's cache. Tensors are given under the names and in the [out,in] order that our
// parameters have: a base model's names get their prefix, GPT-2's [in,out] is turned, experts that lie in one tensor
// are told one by one, a tied head is left out, as are copies of the tables in layers that predict further ahead,
// buffers that are no weights are not there, and 8-bit floats are f32, with their scales in them.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tera/checkpoint/safetensors_source.h"
#include "tera/config/model.h"

namespace tera {

struct FamilyNames;

// Whether the folder looks like one; a checkpoint of ours does not.
bool is_hf_folder(const std::filesystem::path& folder);

class HfFolder final : public SafetensorsSource {
 public:
  explicit HfFolder(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const ModelConfig& model() const { return model_; }              // with every size filled in, as far as files go
  const std::string& config_text() const { return config_text_; }  // config.json, as it is
  std::size_t file_count() const { return files_.size(); }
  // Layers that predict further ahead come with copies of the model's tables, which nobody reads. For who takes these
  // layers: UserError if a copy differs. Reads both whole.
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
  static bool equal(const Stored& one, const Stored& other);  // of floats; UserError of others
  void find_files();
  void read_index(const std::filesystem::path& index);
  void list_stored();
  void check_index() const;
  void pair_scales();
  void settle_head();
  void settle_layers_ahead();
  void drop_copy(const std::string& copy, const std::string& own);
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
