"""sdjax: a lab for speculative decoding in JAX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdjax.targets.load import Model, load
    from sdjax.train.saved import load_drafter

__all__ = ["Model", "load", "load_drafter"]
HOME = {"Model": "sdjax.targets.load", "load": "sdjax.targets.load", "load_drafter": "sdjax.train.saved"}


def __getattr__(name: str) -> Any:
    """Loads the readers only when they are asked for, so that `import sdjax` stays light."""
    if name not in HOME:
        raise AttributeError(f"module 'sdjax' has no attribute {name!r}")
    return getattr(import_module(HOME[name]), name)
