// ferry pack: a model's experts in one file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "command/command.hpp"
#include "command/model_flags.hpp"
#include "store/pack.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"

namespace ferry::engine {
namespace {

struct PackArguments {
  ModelFlags flags;
  std::string out;
  PackOptions pack;
};

int pack(const PackArguments& a) {
  check_outputs({a.out}, a.flags.inputs());
  PackOptions o = a.pack;
  o.quantizer = quantizer_of(a.flags.quantizer, "--quantizer");
  std::optional<ProgressLine> line;
  bool checked = false;
  o.progress = [&](bool checking, std::uint64_t done, std::uint64_t all) {
    if (!line || checking != checked) line.emplace(checking ? "checking what is there, experts" : "experts");
    checked = checking;
    line->show(done, all);
    return !stop;
  };
  o.check = [&](const Checkpoint& checkpoint) { a.flags.check(checkpoint); };
  const Packed made = pack_store(find_model(a.flags.model), a.out, o);
  line.reset();
  const StoreFacts& f = made.facts;
  const std::string there = made.resumed == 0 ? "" : fmt::format(", {} of them by an earlier run", made.resumed);
  const std::uint64_t all = f.numbers.all();
  if (made.done < all) {
    print(fmt::format("{}.part: {} of {} experts{}; run it again to go on\n", a.out, made.done, all, there));
    return 128 + stopped_by;
  }
  print(fmt::format("{}: {} experts{}\n", a.out, all, there));
  if (f.rounded) {
    print(fmt::format("note: {} has fewer bits than the model's own type: no run with this store is lossless\n",
                      f.layout.name(Precision::full)));
  }
  return 0;
}

}  // namespace

void add_pack_command(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<PackArguments>();
  CLI::App* c = app.add_subcommand("pack", "write a model's experts, at several precisions, to one file for --store");
  a->flags.add_model(c);
  a->flags.add_verify(c);
  c->add_option("--precisions", a->pack.precisions,
                "comma-separated: full (the model's own; or bf16, f16, f32), int8, int4, int2")
      ->type_name("NAMES")
      ->delimiter(',')
      ->transform(without_spaces)
      ->capture_default_str();
  c->add_option("--out", a->out, "the file")->type_name("STORE")->check(a_file)->required();
  const CLI::Option* quantizer = c->add_option("--quantizer", a->flags.quantizer, "how weights become low precision")
                                     ->check(CLI::IsMember({"nearest", "hqq"}))
                                     ->capture_default_str();
  const CLI::Option* group = c->add_option("--group", a->pack.group, "weights that share a scale and a minimum")
                                 ->check(CLI::IsMember({32, 64, 128}))
                                 ->capture_default_str();
  c->add_option("--threads", a->pack.threads, "threads (default: one a processor)")
      ->type_name("N")
      ->check(in_range(1, 1024));
  c->footer("What is written goes to STORE.part first; stopped or killed, the same command goes on where it ended.");
  c->callback([a, quantizer, group, &chosen] {
    const auto is_low = [](const std::string& precision) { return precision.starts_with("int"); };
    for (const CLI::Option* o : {quantizer, group}) {
      if (o->count() == 0 || std::any_of(a->pack.precisions.begin(), a->pack.precisions.end(), is_low)) continue;
      throw InputError(fmt::format("{}: is for low precision, expected int8, int4 or int2 among --precisions {}",
                                   o->get_name(), fmt::join(a->pack.precisions, ",")));
    }
    chosen = [a] { return pack(*a); };
  });
}

}  // namespace ferry::engine
