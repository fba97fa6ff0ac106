"""Shapes of published models, from their config.json files; weights are not needed to compile."""

from dataclasses import replace

from sdjax.targets.decoder import Decoder
from sdjax.targets.rope import Llama3Scaling, Rope

LLAMA31_8B = Decoder(
    vocab=128_256,
    width=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_width=128,
    ffw=14_336,
    rope=Rope(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    max_position=131_072,
    dtype="bfloat16",
)
LLAMA33_70B = Decoder(
    vocab=128_256,
    width=8192,
    layers=80,
    heads=64,
    kv_heads=8,
    head_width=128,
    ffw=28_672,
    rope=Rope(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    max_position=131_072,
    dtype="bfloat16",
)
LLAMA32_1B = Decoder(
    vocab=128_256,
    width=2048,
    layers=16,
    heads=32,
    kv_heads=8,
    head_width=64,
    ffw=8192,
    rope=Rope(500_000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192)),
    tied=True,
    max_position=131_072,
    dtype="bfloat16",
)
QWEN3_32B = Decoder(
    vocab=151_936,
    width=5120,
    layers=64,
    heads=64,
    kv_heads=8,
    head_width=128,
    ffw=25_600,
    rope=Rope(1_000_000.0),
    norm_eps=1e-6,
    qk_norm=True,
    max_position=40_960,
    dtype="bfloat16",
)
QWEN3_06B = Decoder(
    vocab=151_936,
    width=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_width=128,
    ffw=3072,
    rope=Rope(1_000_000.0),
    norm_eps=1e-6,
    qk_norm=True,
    tied=True,
    max_position=40_960,
    dtype="bfloat16",
)
QWEN3_8B = Decoder(
    vocab=151_936,
    width=4096,
    layers=36,
    heads=32,
    kv_heads=8,
    head_width=128,
    ffw=12_288,
    rope=Rope(1_000_000.0),
    norm_eps=1e-6,
    qk_norm=True,
    max_position=40_960,
    dtype="bfloat16",
)
QWEN3_4B = replace(QWEN3_8B, width=2560, ffw=9728, tied=True)
SMOLLM2_135M = Decoder(
    vocab=49_152,
    width=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_width=64,
    ffw=1536,
    rope=Rope(100_000.0),
    tied=True,
)
