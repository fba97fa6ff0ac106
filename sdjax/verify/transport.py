"""What no lossless rule can exceed: the largest expected accepted length, a linear programme over draft and verdict."""

from collections import defaultdict

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from sdjax.core.types import Law
from sdjax.trees.tree import Tree
from sdjax.verify.drafts import LIMIT, Builder, outcomes, refuse_size
from sdjax.verify.tables import Tables

MOST_VARIABLES = 60_000


def transport_bound(tables: Tables, tree: Tree | Builder, law: Law, limit: int = LIMIT) -> float | None:
    """The optimum over all lossless rules, whatever they do; of one model.

    A rule is the mass a(T, s) ≥ 0 with which draft T is accepted down to path s, Σ_s a(T, s) = P(T). Let A(s) be the
    mass accepted down to s or further. A last token that makes the output the target's exists if and only if
    A(s·y) ≤ A(s)·p(y|s) for every path s and token y. None where there would be more than MOST_VARIABLES variables.
    """
    if tables.models:
        raise ValueError("the transport bound is computed for one model at a time")
    refuse_size(tables.vocab, tree, law, limit)
    drafts: dict[frozenset, float] = defaultdict(float)  # a draft is as good as its set of paths
    for outcome in outcomes(tables, tree, law):
        drafts[frozenset(outcome.paths)] += float(outcome.weight)
    variables = [(draft, path) for draft, paths in enumerate(drafts) for path in paths]
    if len(variables) > MOST_VARIABLES:
        return None
    found = linprog(
        [-len(path) for _, path in variables],
        A_eq=matrix([(draft, i, 1.0) for i, (draft, _) in enumerate(variables)], len(variables)),
        b_eq=list(drafts.values()),
        **no_excess(tables, variables),
        method="highs",
    )
    if not found.success:
        raise ValueError(f"the transport programme failed: {found.message}")
    return max(0.0, -found.fun)


def no_excess(tables: Tables, variables: list[tuple[int, tuple[int, ...]]]) -> dict:
    """A(s·y) - A(s)·p(y|s) ≤ 0, one row for every path s·y that is drafted."""
    row = {path: i for i, path in enumerate(sorted({path for _, path in variables} - {()}))}
    if not row:
        return {}
    entries = []
    for i, (_, path) in enumerate(variables):
        for end in range(len(path) + 1):
            if end:
                entries.append((row[path[:end]], i, 1.0))
            for token in range(tables.vocab):
                if (*path[:end], token) in row:
                    entries.append((row[*path[:end], token], i, -float(tables.p[end][*path[:end], token])))
    return {"A_ub": matrix(entries, len(variables)), "b_ub": np.zeros(len(row))}


def matrix(entries: list[tuple[int, int, float]], columns: int) -> csr_array:
    """A sparse matrix from (row, column, value); values at the same place add up."""
    rows, cols, values = zip(*entries, strict=True)
    return coo_array((values, (rows, cols)), shape=(max(rows) + 1, columns)).tocsr()
