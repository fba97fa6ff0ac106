"""Hydra and Hydra++ as their authors publish them: `hydra_mlp`, `hydra_lm_head` and, of Hydra++, `prefix_embeding_layer`.

The first block's matrices read all parts of its input at once; ours keep them apart, part by part.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sdjax.drafters.head import DraftHead
from sdjax.drafters.hydra import Hydra, HydraPlus
from sdjax.drafters.published.base import (
    Config,
    Exported,
    Imported,
    Layout,
    Tensors,
    layer_names,
    named,
    need_class,
    take,
)
from sdjax.drafters.published.heads import (
    check_count,
    check_target,
    default_tree,
    note_tied,
    one_object,
    whole_matrices,
)
from sdjax.drafters.published.settings import whole
from sdjax.drafters.residual_heads import matrix_of
from sdjax.targets.decoder import Decoder

NAME, PREFIX = "hydra", "prefix_embeding_layer."  # spelt so
ARCHITECTURES = {"mlp": Hydra, "prefix-mlp": HydraPlus}


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return "hydra_num_heads" in config


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """Every head gets a matrix of its own, with the bias that readers expect: zero where it has none."""
    need_class(drafter, (Hydra, HydraPlus), NAME)
    notes = ["the tree, its law and the recipe of training are left out"]
    plus = isinstance(drafter, HydraPlus)
    heads, layers = len(params["heads"]), (drafter.heads if plus else drafter).layers
    for k, head in enumerate(params["heads"]):
        one_object(head["blocks"], k, NAME)
    kind = (drafter.heads if plus else drafter).head
    matrices = whole_matrices(kind, params["head"], heads, target, target_params, NAME, notes)
    zero = np.zeros(target.vocab, matrices[0].dtype)
    biases = [matrix_of(params["head"], k).get("bias", zero) for k in range(heads)]
    tree = params | {"head": [{"weight": w, "bias": b} for w, b in zip(matrices, biases, strict=True)]}
    tensors = joined(named(names_of(tree, plus), tree))
    config = {
        "hydra_num_heads": heads,
        "hydra_num_layers": layers,
        "hydra_head_arch": "prefix-mlp" if plus else "mlp",
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "base_model_name_or_path": None,
        "hidden_size": target.width,
        "vocab_size": target.vocab,
    }
    return Exported(tensors, config, notes)


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Blocks that the released code ties get weights of their own. Biases over the vocabulary that are all zero are none."""
    notes: list[str] = []
    check_target(config, target)
    plus = check_kind(config, notes)
    heads, layers = whole(config, "hydra_num_heads"), whole(config, "hydra_num_layers")
    check_count(
        config, "hydra_num_heads", len({name.split(".")[1] for name in tensors if name.startswith("hydra_mlp.")}), "heads"
    )
    tensors = without_prefix_extras(without_zero_bias(tensors, heads, plus), notes)
    head = DraftHead(trained=True, bias=any(head_name(k, plus, "bias") in tensors for k in range(heads)))
    inner = Hydra(default_tree(heads, target.vocab, notes), heads, layers, head, own_heads=True)
    drafter: Any = HydraPlus(inner) if plus else inner
    specs = drafter.specs(target)
    params = take(names_of(specs, plus), specs, parted(tensors, heads, plus, target.width), "a Hydra")
    note_tied([head["blocks"] for head in params["heads"]], notes)
    return Imported(drafter, params, notes)


def check_kind(config: Mapping[str, Any], notes: list[str]) -> bool:
    """Whether it is Hydra++; ValueError for heads that are told no tokens, read another state, or are of another kind."""
    kind = config.get("hydra_head_arch")
    if kind not in ARCHITECTURES:
        raise ValueError(f"config.json: hydra_head_arch is {kind!r}; supported: {', '.join(ARCHITECTURES)}")
    if config.get("grounded_heads") is not True:
        raise ValueError(
            f"config.json: grounded_heads is {config.get('grounded_heads')!r}; heads must be told the drafted tokens (true)"
        )
    if config.get("hidden_state_offset") is None:
        notes.append("hidden_state_offset is not given: 0, the target's last state")
    elif config["hidden_state_offset"] != 0:
        raise ValueError(
            f"config.json: hidden_state_offset is {config['hidden_state_offset']!r}; heads on the last state (0) only"
        )
    return kind == "prefix-mlp"


def names_of(tree: Any, plus: bool) -> Any:
    """Published names at the places of Hydra's parameters or specs; part j of a first block's matrix is NAME#j."""
    place = (lambda j: 2 * j + 1) if plus else (lambda j: j)  # Hydra++ has a dropout before every block

    def head(k: int, parts: int, blocks: int) -> Any:
        at = lambda j: f"hydra_mlp.{k}.{place(j)}"
        by_part = lambda name: [f"{at(0)}.{name}.weight#{j}" for j in range(parts)]
        first = {"r": by_part("res_connection"), "r_bias": f"{at(0)}.res_connection.bias"}
        first |= {"a": by_part("linear"), "a_bias": f"{at(0)}.linear.bias"}
        rest = [{"w": f"{at(j)}.linear.weight", "b": f"{at(j)}.linear.bias"} for j in range(1, blocks + 1)]
        return {"first": first, "blocks": rest}

    heads = [head(k, len(own["first"]["r"]), len(own["blocks"])) for k, own in enumerate(tree["heads"])]
    matrices = [{part: head_name(k, plus, part) for part in own} for k, own in enumerate(tree["head"])]
    names: dict[str, Any] = {"heads": heads, "head": matrices}
    if plus:
        layers = [layer_names(layer, f"{PREFIX}layers.{i}.") for i, layer in enumerate(tree["prefix"]["layers"])]
        names["prefix"] = {"layers": layers, "norm": f"{PREFIX}norm.weight"}
    return names


def head_name(k: int, plus: bool, part: str) -> str:
    return f"hydra_lm_head.{k}.1.{part}" if plus else f"hydra_lm_head.{k}.{part}"


def joined(tensors: Tensors) -> Tensors:
    """NAME#0, NAME#1, … side by side as NAME."""
    parts: dict[str, list[np.ndarray]] = {}
    for name, part in tensors.items():
        parts.setdefault(name.partition("#")[0], []).append(part)
    return {name: part[0] if len(part) == 1 else np.concatenate(part, 1) for name, part in parts.items()}


def parted(tensors: Tensors, heads: int, plus: bool, width: int) -> Tensors:
    """The inverse of `joined`; ValueError for a matrix that has not the width of all parts."""
    wanted = {f"hydra_mlp.{k}.{int(plus)}.{name}.weight": k + 2 for k in range(heads) for name in ("res_connection", "linear")}
    out: Tensors = {}
    for name, found in tensors.items():
        count = wanted.get(name)
        if count is None:
            out[name] = found
        elif found.shape != (width, count * width):
            raise ValueError(f"{name} has shape {list(found.shape)}, expected {[width, count * width]}")
        else:
            out |= {f"{name}#{j}": part for j, part in enumerate(np.split(found, count, 1))}
    return out


def without_zero_bias(tensors: Tensors, heads: int, plus: bool) -> Tensors:
    """Leaves out the biases over the vocabulary, where all are zero."""
    biases = {head_name(k, plus, "bias") for k in range(heads)} & tensors.keys()
    if any(np.any(tensors[name]) for name in biases):
        return tensors
    return {name: found for name, found in tensors.items() if name not in biases}


def without_prefix_extras(tensors: Tensors, notes: list[str]) -> Tensors:
    """The prefix layer was saved as a whole model: its embedding is never read, its frequencies follow from the config."""
    unread = f"{PREFIX}embed_tokens.weight"
    if unread in tensors:
        notes.append(f"{unread} left out: the prefix layer reads states, not tokens")
    return {name: x for name, x in tensors.items() if name != unread and not name.endswith("rotary_emb.inv_freq")}


LAYOUT = Layout(NAME, claims, to_published, from_published, "hydra_lm_head.safetensors")
