#include "abi/uses_ferry.hpp"

std::string this_version();
std::string this_version() {
  return decode(4);
}
