#include "gate_watcher.hpp"

#include <ggml-backend.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace ferry::llama_cpp {
namespace {

constexpr std::string_view prefix = "ffn_moe_";

[[noreturn]] void refuse(int layer, const std::string& what) {
  throw std::runtime_error("layer " + std::to_string(layer) + ": " + what);
}

/// "ffn_moe_logits-3" -> "logits", 3. False for every other name.
bool split(std::string_view name, std::string& what, int& number) {
  if (!name.starts_with(prefix)) return false;
  const std::size_t dash = name.rfind('-');
  if (dash == std::string_view::npos) return false;
  const char* end = name.data() + name.size();
  const auto [next, error] = std::from_chars(name.data() + dash + 1, end, number);
  what = name.substr(prefix.size(), dash - prefix.size());
  return error == std::errc{} && next == end;
}

/// llama.cpp calls the logits "probs" where the experts' weights are a softmax of the chosen logits.
bool is_product(const ggml_tensor& t, const std::string& what) {
  return t.op == GGML_OP_MUL_MAT && (what == "logits" || what == "probs");
}

/// Copies a tensor of a graph row by row, since its memory may be a device's and its rows may lie apart.
template <class T>
std::vector<T> rows_of(const ggml_tensor& t, ggml_type type, int layer) {
  if (t.type != type || t.nb[0] != sizeof(T) || t.ne[2] != 1 || t.ne[3] != 1) {
    refuse(layer, std::string(t.name) + " has type " + ggml_type_name(t.type) + " or a shape that is not known");
  }
  const auto columns = static_cast<std::size_t>(t.ne[0]), rows = static_cast<std::size_t>(t.ne[1]);
  std::vector<T> out(columns * rows);
  for (std::size_t r = 0; r < rows; ++r) {
    ggml_backend_tensor_get(&t, out.data() + r * columns, r * t.nb[1], columns * sizeof(T));
  }
  return out;
}

}  // namespace

std::uint64_t WatchedLayer::expert_bytes() const {
  std::uint64_t bytes = 0;
  for (const ggml_tensor* m : matrices) bytes += m->nb[2];
  return bytes;
}

bool GateWatcher::callback(ggml_tensor* tensor, bool ask, void* watcher) {
  auto& self = *static_cast<GateWatcher*>(watcher);
  if (self.failed_) return false;
  try {
    if (ask) {
      self.look_at(*tensor);
    } else {
      self.read(*tensor);
    }
  } catch (...) {
    self.failed_ = std::current_exception();
  }
  return ask ? self.awaited_ == tensor : !self.failed_;
}

void GateWatcher::check() {
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void GateWatcher::end_step() {
  check();
  if (layers_.empty()) throw std::runtime_error("no layer of this model chooses experts: expected an MoE model");
  for (WatchedLayer& l : layers_) {
    if (l.matrices.empty() || l.top_k == 0) refuse(l.number, "its experts were not found in llama.cpp's graph");
    if (!learned_) l.dense = dense_[l.number];
  }
  learned_ = true;
}

std::uint16_t GateWatcher::place_of(int number) {
  const auto [at, added] = places_.try_emplace(number, static_cast<std::uint16_t>(layers_.size()));
  if (added) {
    layers_.emplace_back().number = number;
    rows_.emplace_back();
  }
  return at->second;
}

void GateWatcher::look_at(const ggml_tensor& t) {
  int number = 0;
  if (!learned_ && t.op == GGML_OP_MUL_MAT && std::sscanf(t.src[0]->name, "blk.%d.", &number) == 1) {
    dense_[number].push_back(t.src[0]);
  }
  std::string what;
  if (!split(t.name, what, number)) return;
  const std::uint16_t place = place_of(number);
  if (is_product(t, what) || (wants_choices_ && what == "topk")) {
    awaited_ = &t;
    awaited_layer_ = place;
    awaits_choices_ = what == "topk";
  }
  if (!learned_) learn(t, what, layers_[place]);
}

void GateWatcher::learn(const ggml_tensor& t, const std::string& what, WatchedLayer& l) {
  const bool product = is_product(t, what);
  if (product) {
    l.gate = t.src[0];
    l.experts = static_cast<std::uint32_t>(t.ne[0]);
  }
  if (t.op == GGML_OP_ADD && (what == "logits_biased" || what == "probs")) l.gate_bias = t.src[1];
  if (what == "probs") {
    if (t.op == GGML_OP_UNARY && ggml_get_unary_op(&t) == GGML_UNARY_OP_SIGMOID) {
      l.gating = Gating::sigmoid;
    } else if (t.op != GGML_OP_SOFT_MAX && t.op != GGML_OP_ADD && !product) {
      refuse(l.number, std::string("its gate makes scores by ") + ggml_op_desc(&t) + ", expected softmax or sigmoid");
    }
  }
  if (what == "probs_biased") {
    if (t.op != GGML_OP_ADD)
      refuse(l.number, "its experts are chosen by another rule than a softmax or sigmoid with a bias");
    l.choice_bias = t.src[1];
  }
  if (what == "probs_masked") l.grouped = true;
  if (what == "topk") {  // a part of an argsort
    l.top_k = static_cast<std::uint32_t>(t.ne[0]);
    const ggml_tensor* by = t.src[0] == nullptr ? nullptr : t.src[0]->src[0];
    l.by_logit = l.gating == Gating::sigmoid && by != nullptr && by->op == GGML_OP_MUL_MAT;
  }
  if (what == "weights_norm" || what == "weights_softmax") l.renormalise = Renormalise::yes;
  if (what == "weights_scaled") std::memcpy(&l.scale, t.op_params, sizeof(l.scale));
  if (t.op == GGML_OP_MUL_MAT_ID) l.matrices.push_back(t.src[0]);
}

void GateWatcher::read(const ggml_tensor& t) {
  awaited_ = nullptr;
  const int number = layers_[awaited_layer_].number;
  GateRows& rows = rows_[awaited_layer_];
  if (awaits_choices_) {
    rows.choices = rows_of<std::int32_t>(t, GGML_TYPE_I32, number);
    return;
  }
  rows.rows = static_cast<std::uint32_t>(t.ne[1]);
  rows.logits = rows_of<float>(t, GGML_TYPE_F32, number);
  rows.input = rows_of<float>(*t.src[1], GGML_TYPE_F32, number);
  if (on_gate) on_gate(awaited_layer_, rows);
}

std::vector<float> floats_of(const ggml_tensor& weights) {
  std::vector<std::byte> bytes(ggml_nbytes(&weights));
  ggml_backend_tensor_get(&weights, bytes.data(), 0, bytes.size());
  std::vector<float> out(static_cast<std::size_t>(ggml_nelements(&weights)));
  if (weights.type == GGML_TYPE_F32) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
  } else {
    ggml_get_type_traits(weights.type)->to_float(bytes.data(), out.data(), ggml_nelements(&weights));
  }
  return out;
}

}  // namespace ferry::llama_cpp
