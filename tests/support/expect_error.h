#pragma once
// Errors are part of the interface: tests check their text.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace tera::test {

// Runs the call, expects it to throw E, and returns the message ("" if it did not).
template <class E, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace tera::test
