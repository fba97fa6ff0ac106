"""P-EAGLE as vllm-project/speculators keeps it: EAGLE-3's tensors, more layers, and `mask_hidden`.

The mask of a token is a row of the embedding, which speculators trains and so keeps in the folder; here the rest of it must
be the target's.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sdjax.core.spec import Spec, normal
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.eagle_layer import layer_for
from sdjax.drafters.peagle import PEagle
from sdjax.drafters.published.base import Config, Exported, Imported, Layout, Tensors, layer_names, named, need_class, take
from sdjax.drafters.published.eagle3 import FLAGS, IDS, finish, head_to_config, to_tensors
from sdjax.drafters.published.settings import flag, layer_to_config, refuse_windows, shape_from_config
from sdjax.drafters.published.speculators import (
    ARCHITECTURES,
    PREFIX,
    VERSION,
    chain_length,
    greedy_proposals,
    layer_settings,
)
from sdjax.drafters.published.taps import default_taps, ids_of, taps_from
from sdjax.targets.decoder import Decoder
from sdjax.trees.tree import Tree

NAME, KIND = "speculators-peagle", "peagle"
EMBED, MASK_HIDDEN = "embed_tokens.weight", "mask_hidden"
LATER_LAYER = re.compile(r"layers\.[1-9]")


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return config.get("speculators_model_type") == KIND


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """`speculators_config.verifier.name_or_path` is left null, for who knows where the target lies: readers open it."""
    need_class(drafter, PEagle, NAME)
    if drafter.mask_token is None:
        raise ValueError("readers keep the mask as a row of the embedding; name one that no text has: give mask_token")
    notes = ["what the recipe of training was, and whether drafts are sampled, is left out"]
    notes.append(f"row {drafter.mask_token} of {EMBED} is the mask's, the others are the target's")
    first = {name: params[name] for name in drafter.first.specs(target)}
    tensors = to_tensors(drafter.first, first, target, target_params, PREFIX, notes)
    names, _ = masks_and_layers(drafter, target)
    hidden = np.asarray(params["mask_hidden"]).reshape(1, 1, -1)
    tensors |= named(names, {"layers": params["layers"], "mask_hidden": hidden})
    tensors[EMBED] = with_row(target_params["embed"], drafter.mask_token, params["mask"])
    layers = layer_to_config(target, drafter.layer, tuple(ARCHITECTURES), NAME, drafter.layers)
    config = {
        "architectures": ["PEagleSpeculator"],
        "speculators_model_type": KIND,
        "speculators_version": VERSION,
        **dict.fromkeys(FLAGS, False),
        **head_to_config(drafter.first, tensors, target),
        "norm_output": False,
        "embed_requires_grad": True,
        "mask_token_id": drafter.mask_token,
        IDS: ids_of(drafter.taps, "input", target.layers),
        "tie_word_embeddings": False,
        "transformer_layer_config": layers,
        "speculators_config": greedy_proposals(KIND, drafter.length, target),
    }
    return Exported(tensors, config, notes)


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """`norm_output` is about what is fed back, and nothing is."""
    notes: list[str] = []
    shape = shape_from_config(layer_settings(config, notes), target, notes)
    refuse_windows(shape)
    layer = None if (own := replace(shape, layers=1)) == layer_for(target, None) else own
    flags: dict[str, Any] = {key: flag(config, key, False, notes) for key in FLAGS}
    ids, mask_token = config.get(IDS), config.get("mask_token_id")
    if isinstance(mask_token, bool) or not isinstance(mask_token, int) or not 0 <= mask_token < target.vocab:
        raise ValueError(f"config.json: mask_token_id is {mask_token!r}; masks read that row of {EMBED}, 0..{target.vocab - 1}")
    taps = default_taps(target.layers, notes) if ids is None else taps_from(ids, "input", target.layers)
    length = chain_length(config)
    mask, tensors = take_mask(tensors, mask_token, target_params["embed"], notes)
    beyond = {name: found for name, found in tensors.items() if name == MASK_HIDDEN or LATER_LAYER.match(name)}
    rest = {name: found for name, found in tensors.items() if name not in beyond}
    first = finish(Eagle3(taps, Tree.chain(length), layer=layer, **flags), rest, config, target, target_params, PREFIX, notes)
    drafter = PEagle(taps, length, shape.layers, head=first.drafter.head, mask_token=mask_token, layer=layer, **flags)
    more = take(*masks_and_layers(drafter, target), beyond, "a P-EAGLE")
    mask = mask.astype(more["mask_hidden"].dtype)
    states = more["mask_hidden"].reshape(len(taps), target.width)
    return Imported(drafter, first.params | {"layers": more["layers"], "mask": mask, "mask_hidden": states}, notes)


def masks_and_layers(drafter: PEagle, target: Decoder) -> tuple[Any, Any]:
    """Published names and specs of what EAGLE-3 lacks, at the same places."""
    layers = drafter.model(target).specs()["layers"][1:]
    names = {"layers": [layer_names(layer, f"layers.{i}.") for i, layer in enumerate(layers, 1)], "mask_hidden": MASK_HIDDEN}
    width = len(drafter.taps) * target.width
    return names, {"layers": layers, "mask_hidden": Spec((1, 1, width), target.dtype, (None, None, None), normal())}


def take_mask(tensors: Tensors, token: int, embed: Any, notes: list[str]) -> tuple[Any, Tensors]:
    """The embedding's row for masks, and the tensors with the target's row there instead."""
    if EMBED not in tensors:
        notes.append(f"{EMBED} is missing: the mask is the target's row {token}")
        return embed[token], tensors
    found = tensors[EMBED]
    if found.shape != embed.shape:
        raise ValueError(f"{EMBED} has shape {list(found.shape)}, expected {list(embed.shape)}")
    notes.append(f"the mask is row {token} of {EMBED}")
    return found[token], tensors | {EMBED: with_row(found, token, embed[token])}


def with_row(matrix: Any, row: int, vector: Any) -> np.ndarray:
    """A copy with another row."""
    copy = np.array(matrix)
    copy[row] = vector
    return copy


LAYOUT = Layout(NAME, claims, to_published, from_published)
