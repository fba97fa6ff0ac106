"""Configs and results as JSON data: written whole or not at all, and compared field by field."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def plain_data(value: Any) -> Any:
    """A config as JSON data: dataclasses with the name of their class, so that nothing that matters is lost."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__} | fields
    if isinstance(value, dict):
        return {str(key): plain_data(part) for key, part in value.items()}
    return [plain_data(part) for part in value] if isinstance(value, (list, tuple)) else value


def differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """Every field in which two resolved configs differ: "rule.top_k was 0, is 5"."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{at}.{key}" if at else key)
    elif old != new:
        yield f"{at} was {json.dumps(old)}, is {json.dumps(new)}"


def write_json(path: Path, value: Any) -> None:
    """Writes under a temporary name, then renames."""
    hidden = path.with_name(f".{path.name}.part")
    hidden.write_text(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    hidden.replace(path)


def finite(value: Any) -> Any:
    """The same data with null for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
