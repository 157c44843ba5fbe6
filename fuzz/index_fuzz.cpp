// Fuzzes a .idx file: if it is accepted, every sequence can be read and the dataset can be written again.

#include <vector>

#include "fuzz/fuzz_file.h"
#include "tera/base/error.h"
#include "tera/data/dataset_report.h"
#include "tera/data/indexed/indexed_dataset.h"
#include "tera/data/indexed/indexed_writer.h"

namespace tera::fuzz {
namespace {

void read_everything(const IndexedDataset& data) {
  std::int64_t tokens = 0;
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < data.sequences(); ++i) {
    ids.resize(static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(i)]));
    tokens += std::ssize(ids);
    try {
      data.read(i, 0, 50000, ids);
    } catch (const UserError&) {  // a token id outside the vocabulary
    }
  }
  must(tokens == data.tokens());
  std::int64_t documents = 0;
  for (const auto& bin : document_lengths(data).bins) documents += bin.documents;
  must(documents == data.documents());
}

void write_again(const IndexedDataset& data, const FuzzFolder& folder) {
  const std::string prefix = folder.path() / "again";
  IndexedWriter writer(prefix, data.token_type());
  writer.append(data);
  writer.finish();
  const IndexedDataset again(prefix);
  must(again.tokens() == data.tokens() && again.documents() == data.documents());
}

}  // namespace
}  // namespace tera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tera;
  static const fuzz::FuzzFolder folder;
  if (size < 2) return 0;
  const std::size_t data_bytes = bytes[0] + std::size_t{256} * bytes[1];
  folder.write("d.bin", std::vector<std::uint8_t>(data_bytes, 7));
  folder.write("d.idx", {bytes + 2, size - 2});
  try {
    const IndexedDataset data((folder.path() / "d").string());
    fuzz::read_everything(data);
    fuzz::write_again(data, folder);
  } catch (const UserError&) {
  }
  return 0;
}
