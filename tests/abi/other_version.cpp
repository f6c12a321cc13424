// Compiled with another FERRY_ABI: stands for another version of the library.
#include "abi/uses_ferry.hpp"

std::string other_version();
std::string other_version() {
  return decode(8);
}
