/// @file
/// What both programs take from their users.
#pragma once
#include <CLI/CLI.hpp>

#include <atomic>
#include <string>

#include "llama_session.hpp"

namespace ferry::llama_cpp {

/// Set by a signal: end after the current step. A second signal ends at once.
extern std::atomic<bool> stop;
void await_interrupts();

void add_number(CLI::App& app, const std::string& name, std::uint32_t& value, std::uint32_t least, std::uint32_t most,
                const std::string& what);
/// The model, the prompt, and how it is computed.
void add_session_flags(CLI::App& app, SessionOptions& session);
/// Throws InputError for a command line that does not fit, and ends the program behind its help.
void parse(CLI::App& app, int argc, char** argv, const SessionOptions& session);

}  // namespace ferry::llama_cpp
