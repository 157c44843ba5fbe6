#pragma once
// Counts calls of operator new. A test that uses it links count_news.cpp, which replaces the operator.

#include <cstdint>

namespace tera::test {

std::int64_t news_so_far();  // on this thread

template <class Call>
std::int64_t news_during(Call&& call) {
  const std::int64_t before = news_so_far();
  call();
  return news_so_far() - before;
}

}  // namespace tera::test
