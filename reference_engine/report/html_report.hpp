/// @file
/// The numbers of runs as a page with charts.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "support/json.hpp"

namespace ferry::engine {

/// One self-contained HTML page: it asks nothing of the network and can be read from a file, in light and dark, without
/// scripts and on paper. `runs`: objects as to_json makes them, those of simulations too, and the cells that a sweep
/// refused. `timelines`: a name and Trace Event Format, as write_trace_events makes it. Every chart is there if what it
/// shows is, and is left out if not; so are single numbers that are negative, not finite or absurd. Very many runs have
/// all their rows in the table; the charts say how many they leave out.
/// Throws InputError for what is no run or timeline; it names the timeline, or what `places` calls the run (without places:
/// `runs[3]`), and the field.
std::string html_report(const std::vector<Json>& runs, const std::vector<std::pair<std::string, Json>>& timelines,
                        const std::string& title, const std::vector<std::string>& places = {});

}  // namespace ferry::engine
