/// @file
/// Named compositions.
#pragma once
#include "ferry/cache/load_on_demand.hpp"
#include "ferry/cache/lru.hpp"
#include "ferry/precision/fixed.hpp"
#include "ferry/predictor/cross_layer_gate.hpp"
#include "ferry/predictor/none.hpp"
#include "ferry/router/top_k.hpp"
#include "ferry/schedule/device_only.hpp"
#include "ferry/schedule/fifo.hpp"
#include "ferry/schedule/no_limit.hpp"
#include "ferry/schedule/schedule.hpp"

namespace ferry::stacks {

/// Loads what it is asked for, in that order, and computes on the device.
using LoadEverything = Schedule<NoLimit, Fifo, DeviceOnly>;

/// Every expert of every layer is copied when it is needed, and forgotten.
using OnDemand = Stack<NoPrediction, LoadOnDemand, FixedPrecision, LoadEverything, TopK>;

/// A cache without prefetch. With an allotment of `everything` and a preload: the fully resident model.
using LruCache = Stack<NoPrediction, Lru, FixedPrecision, LoadEverything, TopK>;

/// The same with the next layer's experts foretold by its gate from this layer's gate input.
using CrossLayerLru = Stack<CrossLayerGate, Lru, FixedPrecision, LoadEverything, TopK>;

}  // namespace ferry::stacks
