#include <cstdio>

int main() {
  std::puts("tera");
  return 0;
}
