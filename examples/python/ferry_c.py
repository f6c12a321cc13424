"""libferry for ctypes: the structures of ferry.h, and its functions, whose refusals become exceptions."""
import ctypes
from ctypes import (POINTER, Structure, c_char_p, c_double, c_float, c_int64, c_size_t, c_uint8, c_uint16, c_uint32,
                    c_uint64, c_void_p)

PREFILL, DECODE, FULL, PRECISIONS = 0, 1, 4, 5
NO_SLOT, NO_LAYER = 0xFFFFFFFF, 0xFFFF
NO_RENORMALISE, RENORMALISE = 1, 2
COPY, DROP, FENCE, WAIT = 0, 1, 2, 3


def struct(name, **fields):
    """A ctypes structure with these members, as ferry.h has them."""
    return type(name, (Structure,), {"_fields_": list(fields.items())})


Options = struct(
    "Options", size=c_size_t, stack=c_char_p, parameters=POINTER(c_char_p), parameter_count=c_size_t, layers=c_uint16,
    experts=c_uint16, top_k=c_uint16, renormalise=c_uint8, in_order=c_uint8, least_sum=c_float,
    added_to_sum=c_float, scale=c_float, max_rows=c_uint32,
    expert_bytes=POINTER(c_uint64), expert_byte_rows=c_size_t, layer_experts=c_void_p, layer_top_k=c_void_p,
    budget_bytes=c_uint64, stream_slots=c_uint32, copy_bytes_per_s=c_double, copy_start_ns=c_uint64,
    device_ns=c_uint64 * PRECISIONS, host_ns=c_uint64 * PRECISIONS, host_row_ns=c_uint64, host_start_ns=c_uint64,
    link_beside_host=c_uint32, host_beside_copies=c_uint32)
Variant = struct("Variant", layer=c_uint16, expert=c_uint16, precision=c_uint8)
Copy = struct("Copy", ticket=c_uint64, what=Variant, slot=c_uint32, after=c_uint64, demand=c_uint8)
Command = struct("Command", kind=c_uint8, copy=Copy)
Seen = struct("Seen", demand_landed=c_uint64, prefetch_begun=c_uint64, prefetch_landed=c_uint64, link_ns=c_int64,
              chunk_ns=c_int64)
Route = struct("Route", expert=c_uint16, weight=c_float, instead_of=c_uint16)
Task = struct("Task", what=Variant, slot=c_uint32, first=c_uint32, rows=c_uint32, freed_by=c_uint32, ready=c_uint64,
              transient=c_uint8)
Plan = struct("Plan", routes=POINTER(Route), route_count=c_uint32, assignments=POINTER(c_uint32),
              assignment_count=c_uint32, resident=POINTER(Task), resident_count=c_uint32, arriving=POINTER(Task),
              arriving_count=c_uint32, host=POINTER(Task), host_count=c_uint32)
Scores = struct("Scores", layer=c_uint16, select=POINTER(c_float), weight=POINTER(c_float), count=c_uint32,
                rows=POINTER(c_uint32), row_count=c_uint32)
Traits = struct("Traits", size=c_size_t, predicts=c_uint8, caches=c_uint8, substitutes=c_uint8, skips=c_uint8,
                preloads=c_uint8, computes_on_host=c_uint8, needs_scores=c_uint8, rows=c_uint8 * 2,
                look_ahead_depth=c_uint16)


# What functions give back that give back no status.
RESULTS = {"version": c_char_p, "last_error": c_char_p, "stack_count": c_size_t, "stack_name": c_char_p,
           "stack_summary": c_char_p, "slot_count": c_uint32, "slot_offsets": POINTER(c_uint64), "layer_ahead": c_uint16,
           "close": None, "abandon": None, "end_sequence": None}


class Ferry:
    """The library's functions. A refused call raises an exception with the library's message."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name, result in RESULTS.items():
            getattr(self.lib, "ferry_" + name).restype = result

    def __getattr__(self, name):
        function = getattr(self.lib, "ferry_" + name)
        if name in RESULTS:
            return function

        def call(*arguments):
            if function(*arguments) != 0:
                raise ValueError(self.lib.ferry_last_error().decode())
        return call
