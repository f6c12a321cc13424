/// @file
/// Declarations of the names that engines keep in their own headers, without their definitions.
#pragma once
#include <cstdint>

#include "ferry/macros.hpp"

namespace ferry::inline FERRY_ABI {

template <class T>
struct View;
struct ExpertId;
enum class Precision : std::uint8_t;
struct Variant;
enum class Phase : std::uint8_t;
enum class State : std::uint8_t;
enum class Ticket : std::uint64_t;
enum class Fence : std::uint64_t;
enum class RowSource : std::uint8_t;
enum class Renormalise : std::uint8_t;
struct Step;
struct Scores;
struct Route;
struct Request;
struct Copy;
struct Task;
struct Plan;
struct Seen;
struct Times;
struct Shape;
struct ModelShape;
struct Budget;
struct Allotment;
struct Counters;
struct StackTraits;
template <class Stack>
struct CoreConfig;
template <class Stack>
class Core;
class AnyLink;
class AnyConfig;
class AnyPipeline;
class StackTable;
class CommandBuffer;
class VirtualClock;
class HostThread;
class CudaStream;
class GateBank;
struct Trace;
struct Costs;

struct ConfigError;
struct UsageError;
struct LinkError;

}  // namespace ferry::inline FERRY_ABI
