// Two versions of the library in one program: their names differ, so the linker cannot take one for the other.
#include <cstdio>
#include <string>

std::string this_version();
std::string other_version();

int main() {
  const std::string one = this_version(), two = other_version();
  std::printf("%s\n%s\n", one.c_str(), two.c_str());
  const bool both_ran = one.back() == '2' && two.back() == '2';
  return both_ran && one != two ? 0 : 1;
}
