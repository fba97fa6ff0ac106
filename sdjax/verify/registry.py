"""Every rule by the name that commands take. A lossy rule is never a default: it has to be named."""

from sdjax.verify.approximate import ApproximateGreedy
from sdjax.verify.base import Rule
from sdjax.verify.block import BlockVerification
from sdjax.verify.kseq import KSequential
from sdjax.verify.lenience import Lenience
from sdjax.verify.multipath import BestPath
from sdjax.verify.recursive import Recursive
from sdjax.verify.selection import SelfSelection
from sdjax.verify.token import TokenRejection
from sdjax.verify.traversal import Traversal
from sdjax.verify.typical import TypicalAcceptance
from sdjax.verify.walk import Walk

RULES: dict[str, Rule] = {
    "walk": Walk(),
    "token": TokenRejection(),
    "block": BlockVerification(),
    "recursive": Recursive(),
    "kseq": KSequential(),
    "kseq-k": KSequential(best=False),
    "traversal": Traversal(),
    "best-path": BestPath(),
    "self-selection": SelfSelection(),
    "typical": TypicalAcceptance(),
    "lenience": Lenience(),
    "approximate": ApproximateGreedy(),
}
LOSSLESS = {name: rule for name, rule in RULES.items() if rule.lossless}


def rule_named(name: str) -> Rule:
    """Raises ValueError that lists the names, and says which are lossy."""
    if name not in RULES:
        lossy = sorted(set(RULES) - set(LOSSLESS))
        raise ValueError(f"no rule is called {name!r}; lossless: {', '.join(LOSSLESS)}; lossy: {', '.join(lossy)}")
    return RULES[name]


def refuse_lossy(rule: Rule) -> None:
    """Raises ValueError for a rule whose output is not the target's: for whatever promises that it is."""
    if not rule.lossless:
        raise ValueError(
            f"{type(rule).__name__} is lossy: its output is not the target's. Name it explicitly, or take one of: "
            + ", ".join(LOSSLESS)
        )
