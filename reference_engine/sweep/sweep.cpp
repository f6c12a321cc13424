#include "sweep/sweep.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>

#include "ferry/error.hpp"
#include "stacks/budget.hpp"
#include "stacks/parameters.hpp"
#include "support/bundled_files.hpp"
#include "support/checksum.hpp"
#include "support/errors.hpp"
#include "support/mapped_file.hpp"
#include "support/output_file.hpp"
#include "support/text_file.hpp"
#include "support/threads.hpp"
#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

std::string read_all(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::exists(path, none) ? read_whole(path, ~std::uint64_t{0}) : "";
}

[[noreturn]] void cannot_write(const std::filesystem::path& path) {
  throw InputError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
}

void need_regular_file(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::exists(path, none) || std::filesystem::is_regular_file(path, none)) return;
  throw InputError(fmt::format("{}: not a regular file", path.string()));
}

/// A trace, and the rows that are made up for it.
struct ReadTrace {
  explicit ReadTrace(const std::string& path) : file(std::filesystem::path(path)) {}

  TraceFile file;
  std::optional<AssumedRows> rows;
  std::uint64_t checksum = 0;  ///< 0 until it is asked for
};

/// Opens each trace once. Rows that cells need but the trace lacks are made up when the first such cell runs.
class Traces {
 public:
  explicit Traces(const SweepGrid& grid) : grid_(grid) {}

  const ReadTrace& get(const std::string& path) {
    const std::lock_guard lock(mutex_);
    ReadTrace& read = open(path);
    if (grid_.assumed && !read.rows) {
      const Trace& trace = read.file.trace;
      read.rows.emplace(trace, *grid_.assumed, rows_read_by(grid_, path, trace));
    }
    return read;
  }

  /// Checksum of the file as it was opened.
  std::uint64_t content_checksum(const std::string& path) {
    const std::lock_guard lock(mutex_);
    ReadTrace& read = open(path);
    if (read.checksum == 0) read.checksum = read.file.content_checksum();
    return read.checksum;
  }

  /// The name of its model.
  std::string model_of(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return open(path).file.trace.name;
  }

  /// A replay's work in no particular unit: tokens times layers.
  double work_of(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const Trace& trace = open(path).file.trace;
    return static_cast<double>(std::min<std::uint64_t>(trace.tokens, grid_.max_tokens)) * trace.model.layers;
  }

 private:
  ReadTrace& open(const std::string& path) {
    auto& read = traces_[path];
    if (read == nullptr) read = std::make_unique<ReadTrace>(path);
    return *read;
  }

  const SweepGrid& grid_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<ReadTrace>> traces_;
};

/// Hashes of the contents of a cell's files: its trace, and what else it reads (`small_files`). Names would not do: if a file is
/// replaced, old results would pass for results of the new file.
class Inputs {
 public:
  Inputs(const SweepGrid& grid, Traces& traces) : grid_(grid), traces_(traces) {}

  std::string of(const SweepCell& cell) {
    std::vector<std::uint64_t> all = {traces_.content_checksum(cell.trace)};
    for (const std::filesystem::path& file : small_files(cell)) {
      const auto [found, fresh] = hashes_.try_emplace(file, 0);
      if (fresh) found->second = of_file(file);
      all.push_back(found->second);
    }
    return fmt::format("{:016x}", checksum(all.data(), all.size() * sizeof(std::uint64_t)));
  }

  /// Throws InputError if one of the small files, which each cell reads anew, has changed since. Any thread.
  void check_unchanged(const SweepCell& cell) const {
    for (const std::filesystem::path& file : small_files(cell)) {
      const auto before = hashes_.find(file);
      if (before != hashes_.end() && of_file(file) == before->second) continue;
      throw InputError(
          fmt::format("{}: has changed since the sweep began: put it back and run the sweep again, or name "
                      "another --out",
                      file.string()));
    }
  }

 private:
  [[nodiscard]] std::vector<std::filesystem::path> small_files(const SweepCell& cell) const {
    std::vector<std::filesystem::path> all = {data_file("machines", "machine", cell.machine)};
    if (grid_.costs == CostSource::stated) {
      if (const Machine machine = read_machine(cell.machine); machine.stated) {
        all.push_back(machine.stated->reference_file);
      }
    }
    if (!grid_.as_shape.empty()) all.push_back(data_file("shapes", "model shape", grid_.as_shape));
    if (grid_.calibrated && cell.named.file.empty()) {
      const NamedStack stack = read_stack(cell.named.policies, traces_.model_of(cell.trace));
      if (!stack.calibrated.empty()) all.push_back(data_directory() / stack.calibrated);
    }
    return all;
  }
  static std::uint64_t of_file(const std::filesystem::path& path) {
    const MappedFile file(path, MappedFile::Hold::copied);
    return checksum(file.data(), file.size());
  }

  const SweepGrid& grid_;
  Traces& traces_;
  std::map<std::filesystem::path, std::uint64_t> hashes_;
};

/// The complete lines of a results file, by index. Checks that each belongs to this sweep, and to these inputs if any are
/// given. `kept`: the bytes of these lines.
std::map<std::uint64_t, std::string> lines_of(const std::filesystem::path& path, const std::vector<SweepCell>& cells,
                                              Inputs* inputs, std::uint64_t& kept) {
  std::map<std::uint64_t, std::string> lines;
  need_regular_file(path);
  const std::string text = read_all(path);
  kept = 0;
  for (std::size_t number = 1, at = 0; at < text.size(); ++number) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) {  // cut off: lines are written from the front, keys in alphabetical order
      constexpr std::string_view begins[] = {"{\"all_expert_bytes\":", "{\"refused\":"};
      const std::string_view rest = std::string_view(text).substr(at);
      const bool ours = std::any_of(std::begin(begins), std::end(begins),
                                    [&](std::string_view b) { return rest.starts_with(b.substr(0, rest.size())); });
      if (!ours) throw InputError(fmt::format("{}: line {}: no results of a sweep", path.string(), number));
      break;
    }
    const std::string line = text.substr(at, end - at);
    const std::string where = fmt::format("{}: line {}", path.string(), number);
    if (number == 1 && text.find("\"sweep\":{") == std::string::npos) {
      throw InputError(fmt::format("{}: holds no results of a sweep: name another --out", path.string()));
    }
    if (seal_of(line) != Seal::right) {
      throw InputError(
          fmt::format("{}: is damaged, or of an older ferry: its checksum {}: take the line away, and its "
                      "cell runs again, or name another --out",
                      where, seal_of(line) == Seal::none ? "is missing" : "differs"));
    }
    const Json json = parse_json(line, where);
    const Fields run(json, where);
    const Fields sweep(run.at("sweep"), where + ": sweep");
    const std::uint64_t index = sweep.whole("index", 0, 0x7fffffff);
    if (index >= cells.size() || sweep.text("key") != cells[index].key()) {
      throw InputError(
          fmt::format("{}: holds \"{}\", which is not in this sweep at its place: name another --out, or give "
                      "the arguments that it was begun with",
                      where, sweep.text("key")));
    }
    // Refused cells of older files do not say it.
    const std::string by = sweep.has("ferry") ? sweep.text("ferry")
                           : run.has("ferry") ? run.text("ferry")
                                              : FERRY_VERSION;
    if (by != FERRY_VERSION) {
      throw InputError(
          fmt::format("{}: was run by ferry {}, this is {}, which may find something else: name another --out", where,
                      printable(by), FERRY_VERSION));
    }
    if (const std::string was = sweep.text("inputs"); inputs != nullptr && was != inputs->of(cells[index])) {
      throw InputError(fmt::format(
          "{}: was run with other contents of {}, {} or a shape or calibrated stack that they are run with, "
          "which have changed since: name another --out, or put back what the sweep was begun with",
          where, cells[index].trace, cells[index].machine));
    }
    const auto [found, fresh] = lines.try_emplace(index, line);
    if (!fresh && found->second != line) {
      throw InputError(fmt::format("{}: cell {} stands twice, with different results", where, index));
    }
    at = kept = end + 1;
  }
  return lines;
}

/// Appends whole lines, and removes a line again that a full disk cuts off. The file is locked, so that nobody else changes
/// it after it was opened.
class Lines {
 public:
  explicit Lines(const std::filesystem::path& path) : path_(path) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    made_ = fd_ >= 0;
    if (fd_ < 0) fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw InputError(fmt::format("{}: another sweep is writing it: give each its --rank and --ranks", path.string()));
    }
    if (fd_ < 0) cannot_write(path_);
  }
  /// Keeps the first `bytes` of the file, and drops the rest.
  void keep(std::uint64_t bytes) {
    size_ = bytes;
    if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0) cannot_write(path_);
  }
  ~Lines() {
    if (fd_ < 0) return;
    // A sweep that fails before its first cell leaves no file; one that has no cells leaves an empty one, which says so.
    if (made_ && size_ == 0 && std::uncaught_exceptions() > 0) ::unlink(path_.c_str());
    ::close(fd_);
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  void append(std::string line) {
    line += '\n';
    for (std::size_t written = 0; written < line.size();) {
      const ssize_t n =
          ::pwrite(fd_, line.data() + written, line.size() - written, static_cast<off_t>(size_ + written));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        const int error = errno;
        static_cast<void>(::ftruncate(fd_, static_cast<off_t>(size_)));
        errno = error;
        cannot_write(path_);
      }
      written += static_cast<std::size_t>(n);
    }
    size_ += line.size();
    ::fdatasync(fd_);  // a cell may have taken an hour
  }

 private:
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  int fd_ = -1;
  bool made_ = false;  ///< the file did not exist before
};

/// Parameters that all cells get.
Json given_to_all(const SweepGrid& grid) {
  const Parameter& pools = parameter_of(&StackOptions::pools);
  Json value = pools.read(Json(grid.pools));
  return grid.pools == "stack" ? Json::object() : Json{{pools.name, std::move(value)}};
}

/// The cell's stack, as calibrated for the trace's model if the sweep asks for that.
NamedStack stack_of(const SweepGrid& grid, const SweepCell& cell, const Trace& trace) {
  return grid.calibrated && cell.named.file.empty() ? read_stack(cell.named.policies, trace.name) : cell.named;
}

/// Parameters that the cell's stack gets.
Json given_to(const SweepGrid& grid, const SweepCell& cell, const NamedStack& stack) {
  Json given = given_to_all(grid);
  for (const auto& [name, value] : cell.parameters) given[name] = find_parameter(name, "a sweep").read(value);
  return parameters_of(stack, given);
}

SimulateOptions options_of(const SweepGrid& grid, const SweepCell& cell, const Trace& trace, const Json& given) {
  SimulateOptions o;
  o.stack = cell.named.policies;
  set_parameters(o, given, cell.key());
  o.batch = cell.batch;
  o.max_tokens = grid.max_tokens;
  o.budget_bytes = parse_budget(cell.budget, counted_as(trace.model, grid.as_shape).all_bytes());
  return o;
}

Json run_cell(const SweepGrid& grid, const SweepCell& cell, Traces& traces, const std::atomic<bool>& stop) {
  const ReadTrace& read = traces.get(cell.trace);
  SimulatedSetting setting;
  setting.trace = &read.file;
  if (read.rows) setting.assumed = &*read.rows;
  setting.trace_name = std::filesystem::path(cell.trace).filename().string();
  setting.machine = read_machine(cell.machine);
  setting.costs = grid.costs;
  setting.as_shape = grid.as_shape;
  setting.prefetch_chunk = grid.prefetch_chunk;
  setting.bounds = grid.bounds;
  if (grid.costs == CostSource::stated && !setting.machine.stated) {
    throw ConfigError("machine " + setting.machine.name + " has no \"stated\" times");
  }
  const Trace& trace = read.file.trace;
  const NamedStack stack = stack_of(grid, cell, trace);
  const Json given = given_to(grid, cell, stack);
  SimulateOptions o = options_of(grid, cell, trace, given);
  o.progress = [&stop](std::uint64_t, std::uint64_t) { return !stop; };
  RunReport report = run_simulation(setting, o, given);
  if (!cell.named.file.empty()) report.stack_file = cell.stack;
  Json json = to_json(report);
  if (!stack.calibrated.empty()) json["calibrated"] = stack.calibrated;
  return json;
}

std::optional<std::uint32_t> number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return {};
  std::uint32_t value = 0;
  const char* end = text + std::strlen(text);
  if (const auto [at, error] = std::from_chars(text, end, value); error == std::errc{} && at == end) return value;
  throw InputError(fmt::format("the environment's {} is \"{}\", expected a whole number", name, text));
}

/// Whether two budgets are equal for any model, as "25%" and "25.0%", or "1MiB" and "1048576".
bool same_budget(const std::string& a, const std::string& b) {
  constexpr std::uint64_t large = 1'000'000'000'000'000;
  const auto bytes = [](const std::string& text, std::uint64_t all) { return parse_budget(text, all, "--budgets"); };
  return bytes(a, 0) == bytes(b, 0) && bytes(a, large) == bytes(b, large);
}

/// Drops values that are equal to an earlier one.
template <class T, class Same = std::equal_to<>>
void drop_repeated(std::vector<T>& values, Same same = {}) {
  std::vector<T> kept;
  for (const T& v : values) {
    if (std::none_of(kept.begin(), kept.end(), [&](const T& k) { return same(k, v); })) kept.push_back(v);
  }
  values = std::move(kept);
}

/// Rank and number of ranks from a pair of environment variables, which most launchers set.
std::optional<Ranks> ranks_of(const char* rank_name, const char* ranks_name) {
  const auto rank = number(rank_name), ranks = number(ranks_name);
  if (!rank || !ranks) return {};
  if (*ranks == 0) throw InputError(fmt::format("the environment's {} is 0, expected 1 or more", ranks_name));
  if (*rank < *ranks) return Ranks{*rank, *ranks};
  throw InputError(fmt::format("the environment's {} is {}, expected 0 to {} by its {}", rank_name, *rank,
                               std::int64_t{*ranks} - 1, ranks_name));
}

std::optional<Ranks> ranks_of_array() {
  const auto id = number("SLURM_ARRAY_TASK_ID"), count = number("SLURM_ARRAY_TASK_COUNT");
  if (!id || !count) return {};
  const std::uint32_t first = number("SLURM_ARRAY_TASK_MIN").value_or(0);
  const std::uint32_t step = number("SLURM_ARRAY_TASK_STEP").value_or(1);
  const std::uint32_t last = number("SLURM_ARRAY_TASK_MAX").value_or(first + (std::max(*count, 1U) - 1) * step);
  const bool even = step > 0 && last >= first && (last - first) / step == std::uint64_t{*count} - 1;
  if (even && *id >= first && *id <= last && (*id - first) % step == 0) return Ranks{(*id - first) / step, *count};
  throw InputError(
      fmt::format("the environment's SLURM_ARRAY_TASK_ID is {}: which rank that is does not follow from {} ids from {} "
                  "to {} in steps of {} (SLURM_ARRAY_TASK_COUNT, _MIN, _MAX, _STEP): give --rank and --ranks",
                  *id, *count, first, last, step));
}

}  // namespace

std::string SweepCell::key() const {
  std::string text = fmt::format("{} {} {} {} batch={}", std::filesystem::path(trace).filename().string(), machine,
                                 stack, budget, batch);
  if (!named.file.empty()) text += fmt::format(" {}{}", named.policies, json_text(named.parameters));
  for (const auto& [name, value] : parameters) {
    text += value.is_number() ? fmt::format(" {}={}", name, value.get<double>())
                              : fmt::format(" {}={}", name, value.get<std::string>());
  }
  return valid_utf8(text + setting);  // as the results file has it
}

std::vector<SweepCell> cells_of(const SweepGrid& asked) {
  SweepGrid grid = asked;
  for (auto* names : {&grid.traces, &grid.machines, &grid.stacks}) drop_repeated(*names);
  drop_repeated(grid.budgets, same_budget);
  drop_repeated(grid.batches);
  for (SweptParameter& p : grid.parameters) drop_repeated(p.values);
  std::vector<NamedStack> stacks;
  for (const std::string& s : grid.stacks) stacks.push_back(read_stack(s));
  check_labels(stacks);
  const Json to_all = given_to_all(grid);
  auto takes = [&](const NamedStack& s, const Parameter& p) {
    StackOptions o;
    set_parameters(o, parameters_of(s, to_all), s.label);
    return takes_parameter(s.policies, p.member(), o.pools);
  };
  auto refuse_untaken = [&](const Parameter& p) {
    if (std::any_of(stacks.begin(), stacks.end(), [&](const NamedStack& s) { return takes(s, p); })) return;
    throw InputError(
        fmt::format("{}: none of the stacks {} has this parameter", p.flag(), fmt::join(grid.stacks, ", ")));
  };
  for (const auto& given : to_all.items()) refuse_untaken(find_parameter(given.key(), "a sweep"));
  std::vector<std::vector<SweptParameter>> swept(stacks.size());  // of each stack
  for (const SweptParameter& parameter : grid.parameters) {
    const Parameter& p = find_parameter(parameter.name, "a sweep");
    for (const Json& value : parameter.values) static_cast<void>(p.read(value));  // refuses what is out of range
    refuse_untaken(p);
    for (std::size_t s = 0; s < stacks.size(); ++s) {
      if (takes(stacks[s], p)) swept[s].push_back(parameter);
    }
  }
  std::map<std::string, std::string> names;  // results name traces by file name alone
  for (const std::string& trace : grid.traces) {
    const auto [found, fresh] = names.try_emplace(std::filesystem::path(trace).filename().string(), trace);
    if (!fresh) throw InputError(fmt::format("--traces: {} and {} have one name", found->second, trace));
  }
  std::string setting = fmt::format(" costs={}", cost_source_name(grid.costs));
  if (!grid.as_shape.empty()) setting += " as=" + std::filesystem::path(grid.as_shape).filename().string();
  if (grid.pools != "stack") setting += " pools=" + grid.pools;
  if (parse_chunk(grid.prefetch_chunk, 1) > 0) setting += " prefetch-chunk=" + grid.prefetch_chunk;
  if (grid.bounds != BoundsChoice::proven) setting += grid.bounds == BoundsChoice::all ? " bounds=all" : " bounds=none";
  if (grid.max_tokens != ~std::uint64_t{0}) setting += fmt::format(" tokens={}", grid.max_tokens);
  if (grid.calibrated) setting += " defaults=calibrated";
  if (grid.assumed) {
    grid.assumed->validate();
    setting += fmt::format(" assume-recall={},{}", grid.assumed->top_k, grid.assumed->candidates);
    if (grid.assumed->seed != AssumedRecall().seed) setting += fmt::format(" assume-seed={}", grid.assumed->seed);
  }
  std::vector<SweepCell> cells;
  for (const std::string& trace : grid.traces) {
    for (const std::string& machine : grid.machines) {
      for (const std::uint32_t batch : grid.batches) {
        for (const std::string& budget : grid.budgets) {
          for (std::size_t s = 0; s < stacks.size(); ++s) {
            std::vector<SweepCell> made{{trace, machine, stacks[s].label, budget, stacks[s], batch, {}, setting}};
            for (const SweptParameter& p : swept[s]) {
              std::vector<SweepCell> more;
              for (const SweepCell& c : made) {
                for (const Json& value : p.values) {
                  more.push_back(c);
                  more.back().parameters.emplace_back(p.name, value);
                }
              }
              made = std::move(more);
            }
            cells.insert(cells.end(), made.begin(), made.end());
          }
        }
      }
    }
  }
  return cells;
}

RowNeeds rows_read_by(const SweepGrid& grid, const std::string& path, const Trace& trace) {
  const ModelShape model = counted_as(trace.model, grid.as_shape);
  RowNeeds needs;
  for (const SweepCell& cell : cells_of(grid)) {
    if (cell.trace != path) continue;
    const Json given = given_to(grid, cell, stack_of(grid, cell, trace));
    needs.add(rows_read_by(options_of(grid, cell, trace, given), model));
  }
  return needs;
}

Ranks ranks_of_environment() {
  if (const auto r = ranks_of("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) return *r;
  if (const auto r = ranks_of("PMI_RANK", "PMI_SIZE")) return *r;
  if (const auto r = ranks_of_array()) return *r;
  // The script of a batch job is no step of several tasks, but has their number in SLURM_NTASKS.
  return ranks_of("SLURM_PROCID", "SLURM_STEP_NUM_TASKS").value_or(Ranks{});
}

std::filesystem::path rank_file(const std::filesystem::path& out, Ranks r) {
  if (r.ranks == 1) return out;
  return out.parent_path() /
         fmt::format("{}.{}-of-{}{}", out.stem().string(), r.rank, r.ranks, out.extension().string());
}

void check_results(const std::filesystem::path& path) {
  need_regular_file(path);
  std::error_code none;
  if (!std::filesystem::exists(path, none)) {
    static_cast<void>(OutputFile(path));
    return;
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) cannot_write(path);
  ::close(fd);
}

SweepResult run_sweep(const SweepGrid& grid, const std::filesystem::path& out, Ranks ranks, std::uint32_t threads,
                      const std::atomic<bool>& stop,
                      const std::function<void(std::uint64_t done, std::uint64_t total, double share)>& progress) {
  const std::vector<SweepCell> cells = cells_of(grid);
  const std::filesystem::path path = rank_file(out, ranks);
  need_regular_file(path);
  std::map<std::string, std::string> names;  // results name machines by what their files say
  for (const std::string& machine : grid.machines) {
    const std::string name = read_machine(machine).name;
    const auto [found, fresh] = names.try_emplace(name, machine);
    if (fresh || found->second == machine) continue;
    throw InputError(
        fmt::format("--machines: {} and {} have one name, \"{}\"", found->second, machine, printable(name)));
  }
  Traces traces(grid);
  Inputs inputs(grid, traces);
  std::map<std::uint64_t, std::string> made_of;  // read before the results file is created
  for (std::uint64_t i = ranks.rank; i < cells.size(); i += ranks.ranks) made_of[i] = inputs.of(cells[i]);
  Lines lines(path);
  std::uint64_t kept = 0;
  const auto had = lines_of(path, cells, &inputs, kept);
  lines.keep(kept);
  std::vector<std::uint64_t> todo;
  SweepResult result;
  for (std::uint64_t i = ranks.rank; i < cells.size(); i += ranks.ranks) {
    ++result.cells;
    if (!had.contains(i)) todo.push_back(i);
  }
  result.had = result.cells - todo.size();
  result.refused = static_cast<std::uint64_t>(
      std::count_if(had.begin(), had.end(), [](const auto& line) { return line.second.starts_with("{\"refused\":"); }));
  double work = 0, done_work = 0;
  for (const std::uint64_t i : todo) work += traces.work_of(cells[i].trace);
  std::mutex mutex;
  on_threads(threads, todo.size(), [&](std::size_t at) {
    if (stop) return;
    const SweepCell& cell = cells[todo[at]];
    Json json;
    bool refused = false;
    try {
      json = run_cell(grid, cell, traces, stop);
    } catch (const ConfigError& e) {  // this cell cannot run; others may
      json = {{"refused", e.what()}, {"stack", cell.named.policies}};
      refused = true;
    }
    if (stop) return;  // half a run says nothing
    inputs.check_unchanged(cell);
    json["sweep"] = {{"index", todo[at]},      {"cells", cells.size()},
                     {"key", cell.key()},      {"inputs", made_of.at(todo[at])},
                     {"ferry", FERRY_VERSION}, {"xxh3", unsealed}};
    std::string line = json_text(json);
    seal(line);
    const std::lock_guard lock(mutex);
    lines.append(std::move(line));
    ++result.done;
    result.refused += refused ? 1 : 0;
    done_work += traces.work_of(cell.trace);
    if (progress) progress(result.done, todo.size(), done_work / work);
  });
  result.interrupted = stop;
  return result;
}

std::uint64_t merge_sweep(const SweepGrid& grid, const std::filesystem::path& out, std::uint32_t ranks) {
  const std::vector<SweepCell> cells = cells_of(grid);
  OutputFile file(out, {"results of a sweep", "{", "\"sweep\":{"});
  std::map<std::uint64_t, std::string> all;
  struct Ran {
    std::string inputs;
    std::filesystem::path file;
  };
  std::map<std::vector<std::string>, Ran> ran;  // by what says which files a cell reads
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const std::filesystem::path path = rank_file(out, {r, ranks});
    std::error_code none;
    if (!std::filesystem::exists(path, none)) throw InputError(fmt::format("{}: is missing", path.string()));
    std::uint64_t kept = 0;
    for (auto& [index, line] : lines_of(path, cells, nullptr, kept)) {
      const auto [found, fresh] = all.try_emplace(index, line);
      if (!fresh && found->second != line) {
        throw InputError(
            fmt::format("{}: cell {} stands in another rank's file, too, with other results", path.string(), index));
      }
      const SweepCell& cell = cells[index];
      const std::string inputs = parse_json(line, path.string())["sweep"]["inputs"];
      const Ran& first =
          ran.try_emplace({cell.trace, cell.machine, grid.calibrated ? cell.stack : ""}, Ran{inputs, path})
              .first->second;
      if (first.inputs != inputs) {
        throw InputError(
            fmt::format("{} and {} were run with different contents of {}, {} or what they name: remove the "
                        "older one, and run that rank again",
                        first.file.string(), path.string(), cell.trace, cell.machine));
      }
    }
  }
  for (std::uint64_t i = 0; i < cells.size(); ++i) {
    if (all.contains(i)) continue;
    throw InputError(fmt::format(
        "cell {} of {} ({}) is missing from {}: run that rank again, it goes on where it stopped", i, cells.size(),
        cells[i].key(), rank_file(out, {static_cast<std::uint32_t>(i % ranks), ranks}).string()));
  }
  std::string text;
  for (const auto& [index, line] : all) text += line + "\n";
  file.commit(text);
  return all.size();
}

}  // namespace ferry::engine
