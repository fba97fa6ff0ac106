"""DSpark, and its authors' own DFlash, as DeepSpec publishes them: a flat config, and copies of the target's matrices.

No key says how the block is laid out: these files are anchor-first. Of DFlash's they differ by that, and by a Markov head
or none.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sdjax.drafters.block import Block
from sdjax.drafters.head import target_head
from sdjax.drafters.published.base import Config, Exported, Imported, Layout, Tensors, drop_copy, need_class
from sdjax.drafters.published.block import (
    KEYS,
    drafter_from,
    from_tensors,
    layers_to_config,
    layout_from,
    mask_token,
    need_plain,
    on_backbone,
    to_tensors,
)
from sdjax.drafters.published.settings import flag, whole
from sdjax.drafters.published.taps import ids_of
from sdjax.targets.decoder import Decoder

NAME = "deepspec"
OWN_KEYS = KEYS | {"num_anchors", "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"}
MARKOV = ("none", "vanilla", "gated", "rnn")
COPIES = ("embed_tokens.weight", "lm_head.weight")


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return config.get("architectures") == ["Qwen3DSparkModel"]


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """Drafts are drawn at the temperature, or argmaxes at zero, by the readers' own rule."""
    need_class(drafter, Block, NAME)
    need_plain(drafter, NAME, MARKOV)
    if drafter.layout != "anchor_first" or drafter.block_mask != "full":
        raise ValueError(
            f"the block is {drafter.layout} under a {drafter.block_mask} mask; readers of 'deepspec' take anchor_first and full"
        )
    config = layers_to_config(drafter, target) | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": drafter.width,
        "num_target_layers": target.layers,
        "mask_token_id": mask_token(drafter, params, target_params),
        "target_layer_ids": ids_of(drafter.taps, "output", target.layers),
        "num_anchors": drafter.anchors,
        **heads_to_config(drafter),
    }
    tensors = to_tensors(drafter, params, target)
    tensors |= dict(zip(COPIES, map(np.asarray, (target_params["embed"], target_head(target, target_params))), strict=True))
    return Exported(tensors, config, ["the recipe of training is left out"])


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """With DSpark's recipe or, without its heads, DeepSpec's DFlash; drafts are drawn, as the authors do."""
    notes: list[str] = []
    layers = {key: value for key, value in config.items() if key not in OWN_KEYS}
    layout = layout_from(config, "anchor_first", "as all files of this architecture are", notes)
    backbone = drafter_from(config, layers, target, layout, "output", notes)
    drafter = with_heads(backbone, config, notes)
    if config.get("num_anchors") is not None:
        drafter = replace(drafter, anchors=whole(config, "num_anchors"))
    for name, own in zip(COPIES, (target_params["embed"], target_head(target, target_params)), strict=True):
        tensors = drop_copy(tensors, name, own, notes)
    return Imported(drafter, from_tensors(drafter, tensors, target, target_params, "a DeepSpec", {}), notes)


def heads_to_config(drafter: Block) -> Config:
    """The settings of the Markov and the confidence head."""
    config: Config = {"markov_rank": 0, "enable_confidence_head": bool(drafter.confidence)}
    if drafter.markov != "none":
        config |= {"markov_rank": drafter.rank, "markov_head_type": drafter.markov}
    if drafter.confidence:
        config["confidence_head_with_markov"] = drafter.markov != "none"
    return config


def with_heads(backbone: Block, config: Mapping[str, Any], notes: list[str]) -> Block:
    """The recipe on a backbone, with the heads that the config names."""
    trust, rank = flag(config, "enable_confidence_head", False, notes), config.get("markov_rank")
    given: dict[str, Any] = {"markov": "none", "confidence": float(trust)}
    if rank:
        given |= {"markov": config.get("markov_head_type", "vanilla"), "rank": whole(config, "markov_rank")}
    if trust and config.get("confidence_head_with_markov", bool(rank)) != bool(rank):
        raise ValueError(
            f"config.json: confidence_head_with_markov is {config['confidence_head_with_markov']} with markov_rank {rank}; "
            "a confidence head reads the Markov head's table where there is one"
        )
    own = backbone.taps, backbone.mask_token, backbone.length
    return on_backbone(Block.dspark(*own, **given) if rank or trust else Block.deepspec_dflash(*own), backbone)


LAYOUT = Layout(NAME, claims, to_published, from_published)
