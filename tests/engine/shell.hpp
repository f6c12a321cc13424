/// @file
/// Commands as a user types them.
#pragma once
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace ferry::test {

struct Shell {
  int status = -1;
  std::string out;  ///< and what went to standard error
};

inline Shell shell(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Shell r;
  for (int c; (c = std::fgetc(pipe)) != EOF;) r.out.push_back(static_cast<char>(c));
  const int status = ::pclose(pipe);
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return r;
}

}  // namespace ferry::test
