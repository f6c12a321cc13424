#include "ferry/detail/look_ahead_loop.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace ferry;

namespace {

/// Five layers, of which the second is planned; looks three ahead from gate input until `enough` are asked for.
class Five : public detail::LookAheadLoop<Five> {
 public:
  explicit Five(std::size_t enough) : enough_(enough) {}

  using detail::LookAheadLoop<Five>::look_ahead;
  void look_ahead(const Scores& s) { asked.push_back(s.layer); }
  std::uint16_t layer_ahead(RowSource source, std::uint16_t distance) const noexcept {
    if (source != RowSource::gate_input || distance > 3 || asked.size() >= enough_) return no_layer;
    return static_cast<std::uint16_t>(1 + distance);
  }

  std::vector<std::uint16_t> asked;

 private:
  std::size_t enough_;
};

using Layers = std::vector<std::uint16_t>;

}  // namespace

TEST_CASE("the loop asks for rows of one source, the nearest layer first, and stops where no more are wanted") {
  Layers distances;
  auto rows = [&](std::uint16_t layer, std::uint16_t distance) {
    distances.push_back(distance);
    return Scores{layer, {}, {}};
  };
  Five all(100), one(1);
  all.look_ahead(RowSource::gate_input, rows);
  CHECK(all.asked == Layers{2, 3, 4});
  CHECK(distances == Layers{1, 2, 3});
  one.look_ahead(RowSource::gate_input, rows);  // what was asked for was enough
  CHECK(one.asked == Layers{2});
  Five other(100);
  other.look_ahead(RowSource::partial_hidden, rows);
  other.look_ahead();
  CHECK(other.asked.empty());
  CHECK(distances.size() == 4);
}

TEST_CASE("how many layers' rows would be asked for") {
  CHECK(Five(100).rows_ahead(RowSource::gate_input) == 3);
  CHECK(Five(100).rows_ahead(RowSource::none) == 0);
  CHECK(Five(0).rows_ahead(RowSource::gate_input) == 0);
}
