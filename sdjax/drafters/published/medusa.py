"""Medusa as FasterDecoding publishes it: `{head}.{block}.linear`, and each head's matrix behind its last block."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from sdjax.drafters.head import DraftHead
from sdjax.drafters.medusa import Medusa
from sdjax.drafters.published.base import Config, Exported, Imported, Layout, Tensors, named, need_class, need_no_bias, take
from sdjax.drafters.published.heads import (
    check_count,
    check_target,
    default_tree,
    note_tied,
    one_object,
    whole_matrices,
)
from sdjax.drafters.published.settings import whole
from sdjax.targets.decoder import Decoder

NAME, WITHIN = "medusa", "medusa_head."  # the prefix in checkpoints that hold the target, too


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return "medusa_num_heads" in config


def owns(name: str, config: Mapping[str, Any]) -> bool:
    return re.fullmatch(r"(medusa_head\.)?\d+\.\d+\.(linear\.)?(weight|bias)", name) is not None


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """Every head gets a matrix of its own, as readers expect."""
    need_class(drafter, Medusa, NAME)
    need_no_bias(drafter.head, NAME)
    notes = ["the tree and the recipe of training are left out"]
    for k, blocks in enumerate(params["heads"]):
        one_object(blocks, k, NAME)
    heads = len(params["heads"])
    matrices = whole_matrices(drafter.head, params["head"], heads, target, target_params, NAME, notes)
    parts = {"heads": params["heads"], "head": [{"weight": matrix} for matrix in matrices]}
    config = {"medusa_num_heads": heads, "medusa_num_layers": drafter.layers, "base_model_name_or_path": None}
    return Exported(
        named(names_of(heads, drafter.layers, own_heads=True), parts),
        config | {"hidden_size": target.width, "vocab_size": target.vocab},
        notes,
    )


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Heads without matrices, as the first release had them, share the target's. A config may count fewer than there are."""
    notes: list[str] = []
    check_target(config, target)
    tensors = {name.removeprefix(WITHIN): found for name, found in tensors.items()}
    blocks = {tuple(map(int, name.split(".")[:2])) for name in tensors if name.endswith("linear.weight")}
    heads, layers = (1 + max((place[i] for place in blocks), default=-1) for i in (0, 1))
    if (counted := whole(config, "medusa_num_heads")) < heads:  # the authors' own uploads say 2, and their code ignores it
        notes.append(f"medusa_num_heads is {counted}, but the tensors are of {heads} heads: all are taken")
    else:
        check_count(config, "medusa_num_heads", heads, "heads")
    check_count(config, "medusa_num_layers", layers, "blocks a head")
    own_heads = any(name.count(".") == 2 for name in tensors)
    if not own_heads:
        notes.append("the heads have no matrices: they share the target's")
    tree = default_tree(heads, target.vocab, notes)
    drafter = Medusa(tree, heads, layers, DraftHead(trained=own_heads), own_heads)
    params = take(names_of(heads, layers, own_heads), drafter.specs(target), tensors, "a Medusa")
    note_tied(params["heads"], notes)
    return Imported(drafter, params, notes)


def names_of(heads: int, layers: int, own_heads: bool) -> Any:
    """Published names at the places of Medusa's parameters."""
    block = lambda k, j: {"w": f"{k}.{j}.linear.weight", "b": f"{k}.{j}.linear.bias"}
    matrices = [{"weight": f"{k}.{layers}.weight"} for k in range(heads)]
    return {"heads": [[block(k, j) for j in range(layers)] for k in range(heads)], "head": matrices if own_heads else [{}]}


LAYOUT = Layout(NAME, claims, to_published, from_published, "medusa_lm_head.safetensors", owns)
