"""Rotary settings in a Hugging Face config.json: `rope_theta` + `rope_scaling`, or transformers 5's `rope_parameters`."""

import math
from collections.abc import Mapping
from typing import Any

from sdjax.targets.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling

KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}


def rope_from_config(config: Mapping[str, Any]) -> Rope:
    """Reads both forms; an unknown type, an unknown key or a partial rotation is a ValueError."""
    given = _parameters(config)
    theta = given.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
    old, kind = given.pop("type", None), given.pop("rope_type", None)
    kind = kind or old or "default"
    if kind not in KEYS:
        raise ValueError(f"config.json: rope scaling type {kind!r} is not supported; known: {', '.join(KEYS)}")
    partial = given.pop("partial_rotary_factor", None)
    if partial not in (None, 1):
        raise ValueError(f"config.json: partial_rotary_factor is {partial}; only whole heads are rotated here (1.0)")
    given.pop("finetuned", None)  # YaRN's first checkpoints: says how the model was made, not how it runs
    unknown = sorted(set(given) - KEYS[kind])
    if unknown:
        raise ValueError(f"config.json: rope scaling {kind!r} has unknown settings {unknown}; known: {sorted(KEYS[kind])}")
    original = config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    original = original or config.get("max_position_embeddings")
    return Rope(_number(theta, "rope_theta"), _scaling(kind, given, original))


def rope_to_config(rope: Rope) -> dict[str, Any]:
    """The settings as `rope_theta` and `rope_scaling`, which every release of transformers and its kin reads."""
    return {"rope_theta": rope.theta, "rope_scaling": _scaling_to_config(rope.scaling)}


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    for name, value in (("rope_scaling", old), ("rope_parameters", new)):
        if not isinstance(value, Mapping):
            raise ValueError(f"config.json: {name} is {value!r}; it must be an object or null")
    if old and new and old != new:
        raise ValueError(f"config.json: rope_scaling {old} and rope_parameters {new} disagree; keep one of them")
    given = new or old
    nested = [value for value in given.values() if isinstance(value, Mapping)]
    if not nested:
        return dict(given)
    if len(nested) < len(given) or any(value != nested[0] for value in nested):
        raise ValueError(f"config.json: rotary settings that differ between layers are not supported: {given}")
    return dict(nested[0])


def _scaling(kind: str, given: Mapping[str, Any], original: Any) -> Any:
    def number(key: str) -> float:
        return _number(given.get(key), f"{key} of rope scaling {kind!r}")

    if kind == "linear":
        return LinearScaling(number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            number("factor"), number("low_freq_factor"), number("high_freq_factor"), int(_number(original, "original maximum"))
        )
    if kind == "yarn":
        factor = number("factor")
        return YarnScaling(
            factor,
            int(_number(original, "original maximum")),
            _number(given.get("beta_fast") or 32.0, "beta_fast"),
            _number(given.get("beta_slow") or 1.0, "beta_slow"),
            _attention_factor(factor, given),
            bool(given.get("truncate", True)),
        )
    return None


def _attention_factor(factor: float, given: Mapping[str, Any]) -> float | None:
    """Given outright, or as DeepSeek's ratio of two scales, or None: YaRN's own."""
    if given.get("attention_factor") is not None:
        return _number(given["attention_factor"], "attention_factor")
    if not (given.get("mscale") and given.get("mscale_all_dim")):
        return None

    def scale(weight: Any) -> float:
        return 0.1 * _number(weight, "mscale") * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scale(given["mscale"]) / scale(given["mscale_all_dim"])


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"config.json: {name} is {value!r}; it must be a positive number")
    return float(value)


def _scaling_to_config(scaling: Any) -> dict[str, Any] | None:
    match scaling:
        case LinearScaling(factor):
            return {"rope_type": "linear", "factor": factor}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position,
            }
        case YarnScaling():
            given = {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_max_position,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
            }
            return given if scaling.attention_factor is None else given | {"attention_factor": scaling.attention_factor}
    return None
