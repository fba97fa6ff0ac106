"""Every ordered tree of a given size: the brute force that trees are tested against."""

from functools import cache

from sdjax.trees.tree import Tree


@cache
def shapes(size: int, depth: int, width: int) -> tuple:
    """All trees of `size` nodes, as nested tuples of children."""
    return forests(size - 1, depth, width, width) if size > 1 else ((),)


@cache
def forests(size: int, depth: int, width: int, most: int) -> tuple:
    """All sequences of at most `most` trees with `size` nodes in total, each less than `depth` deep."""
    if size == 0:
        return ((),)
    if depth == 0 or most == 0:
        return ()
    return tuple(
        (first, *others)
        for n in range(1, size + 1)
        for first in shapes(n, depth - 1, width)
        for others in forests(size - n, depth, width, most - 1)
    )


def paths(shape: tuple, above: tuple = ()):
    for rank, child in enumerate(shape):
        yield (*above, rank)
        yield from paths(child, (*above, rank))


def all_trees(size: int, depth: int, width: int) -> list[Tree]:
    return [Tree.from_paths(paths(shape)) for shape in shapes(size, depth, width)]
