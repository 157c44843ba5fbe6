#include "tera/tokenizer/make_normalizer.h"

#include "tera/base/error.h"
#include "tera/tokenizer/token_json.h"

namespace tera {
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& value, const std::string& path) {
  JsonFields fields(value, path);
  fail_user("{}: normalizers of type '{:.80}' are not supported", fields.path_of("type"), fields.text("type"));
}
}  // namespace tera
