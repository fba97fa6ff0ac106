"""Static trees by name: those that published systems ship, and the plain shapes.

A published tree is written as the words of its paths: "021" is the second child of the third child of the first.
Sources: FasterDecoding/Medusa `medusa_choices.py` (the stage-2 trees as OpenMMLab/lmdeploy carries them) and
SafeAILab/EAGLE `choices.py`; node counts agree with the papers' figures.
"""

import re
from difflib import get_close_matches

from sdjax.trees.tree import Tree

PUBLISHED = {
    # Medusa-1, Vicuna-7B: 10/28/23/2 nodes at depths 1-4
    "mc_sim_7b_63": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 20 21 22 30 31 40 50 60 70 80 90 000 001 "
        "002 003 004 005 006 007 008 009 010 011 012 020 021 030 040 050 060 070 100 101 200 0000 0001"
    ),
    # Medusa-2: 10/23/23/7
    "vicuna_7b_stage2": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 20 21 30 31 40 50 60 70 000 001 002 003 004 005 "
        "006 007 008 010 011 012 013 020 021 030 040 050 100 101 102 110 200 0000 0001 0002 0003 0010 0020 0100"
    ),
    # Medusa-2: 10/19/25/9
    "vicuna_13b_stage2": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 20 21 30 40 50 000 001 002 003 004 005 006 007 008 "
        "009 010 011 012 013 020 021 030 040 050 100 101 102 110 200 300 0000 0001 0002 0003 0010 0011 0020 0100 1000"
    ),
    # Medusa-2: 10/24/24/5
    "vicuna_33b_stage2": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 20 21 22 30 31 40 50 60 70 000 001 002 003 004 "
        "005 006 007 008 009 010 011 012 013 020 021 030 040 050 100 101 102 110 200 0000 0001 0002 0010 0100"
    ),
    # Medusa-2, self-distilled: 10/27/23/3
    "zephyr_stage2": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 20 21 22 23 30 31 40 41 50 60 70 000 001 002 "
        "003 004 005 006 007 008 009 010 011 012 013 020 021 030 040 050 100 101 110 200 0000 0001 0010"
    ),
    # EAGLE-1 (its code calls this one mc_sim_7b_63 too): 4/8/8/3/2
    "eagle_1": ("0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"),
}


def named_tree(name: str) -> Tree:
    """A published tree, "chain5" (five drafts in a row) or "4x2x1" (every node at depth d has so many children).

    Raises ValueError with the nearest names for any other.
    """
    if name in PUBLISHED:
        return Tree.from_paths([int(rank) for rank in word] for word in PUBLISHED[name].split())
    if chain := re.fullmatch(r"chain(\d+)", name):
        return Tree.chain(int(chain[1]))
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", name):
        return Tree.branching(*map(int, name.split("x")))
    near = get_close_matches(name, PUBLISHED, n=2, cutoff=0.4) or sorted(PUBLISHED)
    raise ValueError(f"no tree is called {name!r}; did you mean {' or '.join(near)}? A shape is written as chain5 or 4x2x1")
