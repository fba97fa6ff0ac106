"""The size of a dynamic tree, as hashable data: its shape is found at each step (EAGLE-2, arXiv:2406.16858)."""

from dataclasses import dataclass

from sdjax.core.checks import as_integer


@dataclass(frozen=True)
class DynamicTree:
    """At each level the likeliest nodes bring forth as many children each, and of all of these the likeliest are kept.

    The published defaults for 7-8B targets are width 10, 60 nodes, and 6 (EAGLE-2) or 8 (EAGLE-3) levels.
    """

    depth: int = 6
    """Levels below the anchor."""
    nodes: int = 60
    """Nodes that are kept, the anchor included."""
    width: int = 10
    """Nodes of a level that bring forth children, and the children of each."""

    def __post_init__(self):
        for name in ("depth", "nodes", "width"):
            as_integer(getattr(self, name), name)
        if self.depth < 1 or self.width < 1:
            raise ValueError(f"a dynamic tree needs depth ≥ 1 and width ≥ 1; got depth {self.depth}, width {self.width}")
        if not self.depth < self.nodes <= self.candidates + 1:
            raise ValueError(
                f"nodes is {self.nodes}; {self.depth} levels of width {self.width} bring {self.candidates} candidates, so it "
                f"must lie in {self.depth + 1}..{self.candidates + 1}"
            )

    @property
    def candidates(self) -> int:
        """Nodes that the levels bring, of which `nodes` - 1 are kept."""
        return self.width + (self.depth - 1) * self.width**2

    @property
    def is_chain(self) -> bool:
        """Whether there is one shape to find: with more children, even depth + 1 nodes may stand side by side."""
        return self.width == 1
