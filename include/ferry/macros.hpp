/// @file
/// FERRY_HD: functions of the decision core that must also compile for the device. FERRY_HOT: functions too small to be
/// calls; in a file with many stacks GCC would stop inlining them (without it, 20 stacks in one file take up to a tenth more
/// instructions a decision). FERRY_ABI: the inline namespace that all names are in, one for each version, so that two
/// versions can be linked into one program.
#pragma once

#if defined(__CUDACC__)
#define FERRY_HD __host__ __device__
#define FERRY_HOT inline
#else
/// A function that also compiles for the device.
#define FERRY_HD
/// A function that is too small to be a call.
#define FERRY_HOT inline __attribute__((always_inline))
#endif

/// Interfaces may change with it.
#define FERRY_VERSION_MAJOR 0
/// Until 1.0 interfaces may change with it, too.
#define FERRY_VERSION_MINOR 1
/// Changes for corrections only.
#define FERRY_VERSION_PATCH 0
/// The three of them, as text.
#define FERRY_VERSION "0.1.0"

#if !defined(FERRY_ABI)
/// The inline namespace of this version.
#define FERRY_ABI v0_1
#endif
