#include "tera/config/report.h"

#include "tera/base/utf8.h"
#include "tera/config/catalog.h"
#include "tera/config/value.h"

namespace tera {

std::string Report::with_value(std::string_view key) const {
  std::string out(key);
  for_each_value(config_, [&](const std::string& name, const Field& field, const void* value) {
    if (name == key) out += '=' + mend_utf8(write_value(field, value));  // what is wrong may be just that
  });
  if (origins_ == nullptr) return out;
  const auto origin = origins_->find(key);
  return fmt::format("{} ({})", out, origin == origins_->end() ? "default" : origin->second);
}

}  // namespace tera
