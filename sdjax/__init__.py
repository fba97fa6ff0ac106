"""sdjax: a lab for speculative decoding in JAX."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdjax.targets.load import Model, load

__all__ = ["Model", "load"]


def __getattr__(name: str) -> Any:
    """Loads the model readers only when they are asked for, so that `import sdjax` stays light."""
    if name not in __all__:
        raise AttributeError(f"module 'sdjax' has no attribute {name!r}")
    from sdjax.targets import load as module

    return getattr(module, name)
