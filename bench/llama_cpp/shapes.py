"""The layer shapes that are compared. The vocabulary is 256 bytes and two special tokens, so the head costs next to nothing."""
import dataclasses

VOCABULARY = 258


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    what: str
    mixtral: bool  # otherwise it is a Qwen2-MoE
    layers: int
    hidden: int
    width: int  # of an expert
    experts: int
    top_k: int
    shared: int  # width of the shared expert, 0: none
    heads: int
    kv_heads: int


SHAPES = {s.name: s for s in (
    Shape("mixtral-8x7b", "layers of Mixtral-8x7B", True, 2, 4096, 14336, 8, 2, 0, 32, 8),
    Shape("qwen1.5-moe-a2.7b", "layers of Qwen1.5-MoE-A2.7B", False, 4, 2048, 1408, 60, 4, 5632, 16, 16),
    Shape("deepseek-v2-lite", "DeepSeek-V2-Lite's experts in layers of Qwen2-MoE, whose attention is not MLA",
          False, 4, 2048, 1408, 64, 6, 2 * 1408, 16, 16),
)}
