#include "profiles/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "support/errors.hpp"

namespace ferry::engine {

namespace {

std::uint64_t whole(double x) {
  return static_cast<std::uint64_t>(std::llround(x));
}

Nanoseconds ns(double seconds) {
  return static_cast<Nanoseconds>(std::llround(seconds * 1e9));
}

/// Time of a layer in decode with its experts resident.
double layer_s(const ModelFacts& m, const Costs& c) {
  const Nanoseconds expert = c.on_device(0, m.model.bytes(0, Precision::full), 1);
  return static_cast<double>(c.dense(0, 1) + m.model.top_k * expert) * 1e-9;
}

}  // namespace

std::vector<std::string> machine_names() {
  return data_names("machines");
}

Machine read_machine(const std::string& name_or_path) {
  const std::filesystem::path path = data_file("machines", "machine", name_or_path);
  return read_machine(read_json(path), path.string());
}

Machine read_machine(const Json& root, const std::string& where_from) {
  const Fields f(root, where_from);
  auto part = [&](const Fields& object, const std::string& where, const std::string& field, double least,
                  double most = 1e15) {
    const Fields value(object.at(field), where_from + ": " + where + field);
    static_cast<void>(value.text("source"));
    static_cast<void>(value.at("value"));
    value.refuse_others({"note"});
    const double number = value.at("value").is_number() ? value.at("value").get<double>() : -1;
    if (!std::isfinite(number) || number < least || number > most) {
      value.refuse("value", fmt::format("a number from {:g} to {:g}", least, most));
    }
    return number;
  };
  auto speed = [&](const Fields& o, const char* object, const char* unit) {
    const std::string where = std::string(object) + ": ";
    const double most = std::string_view(unit) == "flops" ? 1e16 : 1e15;  // `Costs` takes no more
    return Machine::Speed{part(o, where, std::string("peak_") + unit, 1, most),
                          part(o, where, std::string("effective_") + unit, 1, most)};
  };
  auto fields = [&](const char* object) { return Fields(f.at(object), where_from + ": " + object); };
  const Fields link = fields("link"), memory = fields("device_memory"), compute = fields("device_compute"),
               host_memory = fields("host_memory"), host_compute = fields("host_compute"),
               activations = fields("activations");
  Machine m;
  m.name = f.text("name");
  for (const char* what : {"device", "host"}) {  // for readers
    if (f.has(what)) static_cast<void>(f.text(what));
  }
  m.link = speed(link, "link", "bytes_per_s");
  m.link_latency_s = part(link, "link: ", "latency_s", 0, 1000);
  m.device_memory = speed(memory, "device_memory", "bytes_per_s");
  if (memory.has("bytes")) m.device_bytes = part(memory, "device_memory: ", "bytes", 1);
  m.device_compute = speed(compute, "device_compute", "flops");
  m.device_launch_s = part(f, "", "device_launch_s", 0, 1000);
  m.host_memory = speed(host_memory, "host_memory", "bytes_per_s");
  m.host_compute = speed(host_compute, "host_compute", "flops");
  m.host_launch_s = part(f, "", "host_launch_s", 0, 1000);
  m.host_beside_copies = part(host_memory, "host_memory: ", "beside_copies", 0.01, 1);
  m.link_beside_host = part(link, "link: ", "beside_host", 0.01, 1);
  m.activations_latency_s = part(activations, "activations: ", "latency_s", 0, 1000);
  m.activations_bytes_per_s = part(activations, "activations: ", "bytes_per_s", 1);
  if (f.has("stated")) {
    const Fields s(f.at("stated"), where_from + ": stated");
    Machine::Stated stated;
    try {
      const double bits = s.number("bits_per_weight", 0);
      if (bits > 64) s.refuse("bits_per_weight", "at most 64");
      stated.reference_file = data_file("shapes", "model shape", s.text("reference_model"));
      stated.reference = read_shape(s.text("reference_model"), bits);
    } catch (const InputError& e) {
      throw InputError(fmt::format("{}: stated: reference_model: {}", where_from, e.what()));
    }
    stated.expert_transfer_s = part(s, "stated: ", "expert_transfer_s", 1e-9, 1000);
    stated.layer_compute_s = part(s, "stated: ", "layer_compute_s", 1e-9, 1000);
    m.stated = std::move(stated);
    s.refuse_others({"note"});
  }
  for (const Fields* o : {&link, &memory, &compute, &host_memory, &host_compute, &activations}) {
    o->refuse_others({"name", "note"});
  }
  f.refuse_others({"note"});
  return m;
}

std::string Machine::reference_model() const {
  return stated ? stated->reference.name : "mixtral-8x7b";
}

double Machine::ratio() const {
  if (stated) return stated->expert_transfer_s / stated->layer_compute_s;
  const ModelFacts model = read_shape(reference_model());
  const Costs c = costs(model.work, CostSource::effective);
  return static_cast<double>(c.copy(model.model.bytes(0, Precision::full))) * 1e-9 / layer_s(model, c);
}

Costs Machine::costs(const std::vector<LayerWork>& work, CostSource source) const {
  auto of = [&](const Speed& s) { return whole(source == CostSource::peak ? s.peak : s.effective); };
  Costs c;
  c.device = {of(device_memory), of(device_compute), source == CostSource::peak ? 0 : ns(device_launch_s)};
  c.host = {of(host_memory), of(host_compute), source == CostSource::peak ? 0 : ns(host_launch_s)};
  auto beside = [](double kept, std::uint64_t speed) {
    return kept < 1 ? std::max<std::uint64_t>(1, whole(kept * static_cast<double>(speed))) : 0;
  };
  c.host_bytes_per_s_beside_copies = beside(host_beside_copies, c.host.bytes_per_s);
  c.activations_latency_ns = source == CostSource::peak ? 0 : ns(activations_latency_s);
  c.activations_bytes_per_s = whole(activations_bytes_per_s);
  c.link_bytes_per_s = of(link);
  c.link_latency_ns = source == CostSource::peak ? 0 : ns(link_latency_s);
  c.link_bytes_per_s_beside_host = beside(link_beside_host, c.link_bytes_per_s);
  c.work = work;
  if (source != CostSource::stated) return c;
  if (!stated) {
    throw InputError(fmt::format("machine {} has no \"stated\" times: take its effective or peak ones", name));
  }
  Costs reference = c;
  reference.work = stated->reference.work;
  const double more_s = stated->layer_compute_s - layer_s(stated->reference, reference);
  const Nanoseconds start_ns = std::max<Nanoseconds>(0, ns(more_s / (1 + stated->reference.model.top_k)));
  c.device.start_ns += start_ns;
  c.host.start_ns += start_ns;
  const auto bytes = static_cast<double>(stated->reference.model.bytes(0, Precision::full));
  c.link_bytes_per_s = std::max<std::uint64_t>(1, whole(bytes / stated->expert_transfer_s));
  c.link_bytes_per_s_beside_host = beside(link_beside_host, c.link_bytes_per_s);
  c.link_latency_ns = 0;
  return c;
}

Costs as_if(Costs c, const ModelFacts& reference, const ModelShape& model) {
  const double scale = static_cast<double>(model.bytes(0, Precision::full)) /
                       static_cast<double>(reference.model.bytes(0, Precision::full));
  auto scaled = [scale](std::uint64_t amount) {
    return amount == 0 ? 0 : std::max<std::uint64_t>(1, whole(static_cast<double>(amount) * scale));
  };
  c.link_bytes_per_s = scaled(c.link_bytes_per_s);
  c.link_bytes_per_s_beside_host = scaled(c.link_bytes_per_s_beside_host);
  c.prefetch_chunk_bytes = scaled(c.prefetch_chunk_bytes);
  c.device.bytes_per_s = scaled(c.device.bytes_per_s);
  c.host.bytes_per_s = scaled(c.host.bytes_per_s);
  c.host_bytes_per_s_beside_copies = scaled(c.host_bytes_per_s_beside_copies);
  c.work = reference.work;
  for (LayerWork& w : c.work) w.dense_bytes = scaled(w.dense_bytes);
  return c;
}

std::uint64_t throttle_bytes_per_s(const Machine& machine, std::uint64_t expert_bytes, double decode_layer_s) {
  return static_cast<std::uint64_t>(
      std::max(1.0, std::round(static_cast<double>(expert_bytes) / (machine.ratio() * decode_layer_s))));
}

}  // namespace ferry::engine
