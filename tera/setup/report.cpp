#include "tera/setup/report.h"

#include "tera/base/utf8.h"
#include "tera/config/catalog.h"
#include "tera/config/value.h"

namespace tera {

std::string Report::value_of(std::string_view key) const {
  std::string out;
  for_each_value(config_, [&](const std::string& name, const Field& field, const void* value) {
    if (name == key) out = mend_utf8(write_value(field, value));  // the error may be that it is not UTF-8
  });
  return out;
}

std::string Report::with_value(std::string_view key) const {
  const std::string value = value_of(key);
  const std::string out = value.empty() ? std::string(key) : fmt::format("{}={}", key, value);
  if (origins_ == nullptr) return out;
  const auto origin = origins_->find(key);
  return fmt::format("{} ({})", out, origin == origins_->end() ? "default" : origin->second);
}

std::string Report::how_missing(std::string_view key) const {
  const bool written = origins_ != nullptr && origins_->contains(key);
  return written && value_of(key) == "0" ? with_value(key) + ": must not be 0" : fmt::format("{} is not given", key);
}

}  // namespace tera
