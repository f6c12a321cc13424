/// @file
/// The vocabulary that a GGUF file carries.
#pragma once
#include <memory>

#include "checkpoint/gguf.hpp"
#include "text/tokenizer.hpp"

namespace ferry::engine {

/// `tokenizer.ggml.model` "gpt2" (byte pairs, split as `tokenizer.ggml.pre` says) or "llama" (SentencePiece); null if the file has
/// none. Throws InputError, naming the metadata, for others and for what is damaged.
std::unique_ptr<Tokenizer> read_gguf_vocabulary(const Gguf& file);

}  // namespace ferry::engine
