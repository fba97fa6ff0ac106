"""What one TPU chip has, that the compiler's answers are held against: published figures (Cloud TPU documentation), and HBM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """HBM in bytes, of which the compiler refuses to use more, and in bytes/s, peak bfloat16 FLOP/s, and the clock in Hz.

    A chip of v5e or v6e is sold as one of 16 or 32 GiB, of which 0.25 or 0.75 GiB are kept from programs.

    Clocks are not published: they follow from the peak and the matrix units (4 of 128 × 128 on v5e, two cores of them
    on v5p, 2 of 256 × 256 on v6e).
    """

    hbm: int
    bandwidth: float
    flops: float
    clock: float


GIB = 1 << 30
CHIPS = {
    "v5e": Chip(int(15.75 * GIB), 819e9, 197e12, 1.50e9),
    "v5p": Chip(int(95.74 * GIB), 2765e9, 459e12, 1.75e9),
    "v6e": Chip(int(31.25 * GIB), 1640e9, 918e12, 1.75e9),
}


def chip_of(topology: str) -> Chip:
    """That of a topology string such as v5e:2x4; ValueError for a generation without figures here."""
    name, _, shape = topology.partition(":")
    if name not in CHIPS or not shape:
        raise ValueError(f"the topology is {topology!r}; write it as in v5e:2x4, v5p:2x2x4, v6e:8x8 ({', '.join(CHIPS)})")
    return CHIPS[name]
