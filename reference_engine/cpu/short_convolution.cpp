#include <utility>

#include "cpu/cpu_attention.hpp"
#include "math/host_math.hpp"

namespace ferry::engine {
namespace {

/// LFM2's short convolutions: a token becomes three vectors. The product of the first and the third goes through a convolution
/// over the last tokens, channel by channel, and is then multiplied by the second.
///
/// In a sequence's cache, `keys` holds the products of the last tokens [kernel - 1, hidden]. Position 0 starts with zeros.
class ShortConvolution final : public MemoryOfLayers {
 public:
  ShortConvolution(const ModelConfig& c, const Weights& weights, PackedProduct& product)
      : MemoryOfLayers(c), product_(product) {
    for (std::uint32_t index = 0; index < c.layers; ++index) {
      Layer& layer = layers_.emplace_back();
      if (!c.layer[index].linear) continue;
      const auto name = [&](const char* rest) { return c.tensor(index, std::string("conv.") + rest); };
      const std::string in = name("in_proj.weight");
      layer.before = weights.rows_of(in, std::uint64_t{3} * c.hidden, c.hidden, 0, c.hidden);
      layer.behind = weights.rows_of(in, std::uint64_t{3} * c.hidden, c.hidden, c.hidden, c.hidden);
      layer.value = weights.rows_of(in, std::uint64_t{3} * c.hidden, c.hidden, 2ULL * c.hidden, c.hidden);
      layer.kernel = kernel_of(weights, name("conv.weight"), c.hidden);
      layer.out = weights.matrix(name("out_proj.weight"), c.hidden, c.hidden);
    }
  }

  void run(std::uint32_t index, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, const Matrix& normed,
           Matrix& out) override {
    const Layer& layer = layers_[index];
    product_.run(normed, {layer.before.times(before_), layer.behind.times(behind_), layer.value.times(value_)});
    value_.array() *= before_.array();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto at = static_cast<Eigen::Index>(i);
      Matrix& last = caches[rows[i].sequence].keys[index];
      if (rows[i].position == 0) last.setZero();
      convolve(layer.kernel, last, value_.row(at).data());
      behind_.row(at) = behind_.row(at).cwiseProduct(value_.row(at));
    }
    layer.out.times(behind_, product_, out);
  }

 private:
  struct Layer {
    StoredMatrix before, behind, value, out;
    Matrix kernel;  ///< [kernel, hidden]
  };

  PackedProduct& product_;
  std::vector<Layer> layers_;
  Matrix before_, behind_, value_;  // scratch
};

}  // namespace

std::unique_ptr<CpuAttention> make_short_convolution(const ModelConfig& config, const Weights& weights,
                                                     PackedProduct& product) {
  return std::make_unique<ShortConvolution>(config, weights, product);
}

}  // namespace ferry::engine
