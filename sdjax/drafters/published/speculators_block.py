"""DFlash and DSpark as vllm-project/speculators keeps them: one class each, `layers.*`, ids of layers' inputs.

Where the vocabulary is the target's, folders hold neither embedding nor head; a draft vocabulary brings its matrix.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from sdjax.drafters.block import Block
from sdjax.drafters.head import DraftHead, target_head
from sdjax.drafters.published.base import Config, Exported, Imported, Layout, Tensors, drop_copy, is_copy, need_class
from sdjax.drafters.published.block import (
    drafter_from,
    from_tensors,
    layers_to_config,
    layout_from,
    mask_token,
    need_plain,
    to_tensors,
)
from sdjax.drafters.published.deepspec import MARKOV, heads_to_config, with_heads
from sdjax.drafters.published.settings import whole
from sdjax.drafters.published.speculators import VERSION, greedy_proposals, layer_settings
from sdjax.drafters.published.taps import ids_of
from sdjax.drafters.published.vocabulary import from_offsets, to_offsets, without_offsets
from sdjax.targets.decoder import Decoder

NAME = "speculators-block"
KINDS = {"dflash": "DFlashSpeculator", "dspark": "DSparkSpeculator"}
IDS = "aux_hidden_state_layer_ids"


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return config.get("speculators_model_type") in KINDS


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """dflash where there is no Markov head, else dspark. `verifier.name_or_path` is left null, as nobody knows it here."""
    need_class(drafter, Block, NAME)
    need_plain(drafter, NAME, MARKOV)
    if drafter.block_mask != "full":
        raise ValueError(f"the block's mask is {drafter.block_mask}; readers of {NAME!r} know full ones")
    refuse_others(drafter)
    kind = "dspark" if drafter.markov != "none" or drafter.confidence else "dflash"
    tensors = to_tensors(drafter, params, target)
    head = params["head"]
    if "ids" in head:
        tensors |= to_offsets(head["ids"], target.vocab) | {"lm_head.weight": np.asarray(head["weight"])}
    config = {
        "architectures": [KINDS[kind]],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "draft_vocab_size": drafter.head.size or target.vocab,
        "block_size": drafter.width,
        "target_hidden_size": target.width,
        IDS: ids_of(drafter.taps, "input", target.layers),
        "mask_token_id": mask_token(drafter, params, target_params),
        "sample_from_anchor": drafter.layout == "anchor_first",
        **(heads_to_config(drafter) if kind == "dspark" else {}),
        "tie_word_embeddings": False,
        "transformer_layer_config": layers_to_config(drafter, target),
        "speculators_config": greedy_proposals(kind, drafter.length, target),
    }
    return Exported(tensors, config, ["the recipe of training is left out"])


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Folders older than the key `sample_from_anchor` fill in, whatever their name."""
    notes: list[str] = []
    layers = {key: value for key, value in layer_settings(config, notes).items() if key != "architectures"}
    layout = layout_from(config, "fill_in", "as folders older than the setting do", notes)
    settings = config | {"target_layer_ids": config.get(IDS)}
    drafter = drafter_from(settings, layers, target, layout, "input", notes)
    if config["speculators_model_type"] == "dspark":
        drafter = with_heads(drafter, config, notes)
    refuse_others(drafter)
    ids = from_offsets(tensors, whole(config, "draft_vocab_size"), target.vocab, notes)
    tensors = drop_copy(without_offsets(tensors), "embed_tokens.weight", target_params["embed"], notes)
    drafter, head, tensors = head_from(drafter, ids, tensors, target, target_params, notes)
    return Imported(drafter, from_tensors(drafter, tensors, target, target_params, "a speculators", head), notes)


def refuse_others(drafter: Block) -> None:
    """Raises ValueError for what readers of this layout compute otherwise."""
    if drafter.markov == "rnn" and drafter.layout == "fill_in":
        raise ValueError(
            f"in {NAME!r} a recurrence also runs over the idle slot of a block that fills in, and here it does not"
        )
    if any(drafter.windows):
        raise ValueError(f"windows are {drafter.windows}: in {NAME!r} they end at the anchor, here at each query")


def head_from(
    drafter: Block, ids: Any, tensors: Tensors, target: Decoder, target_params: Any, notes: list[str]
) -> tuple[Block, dict[str, Any], Tensors]:
    """The draft vocabulary with its rows, which are the target's; the whole one borrows them."""
    own = target_head(target, target_params)
    if ids is None:
        return drafter, {}, drop_copy(tensors, "lm_head.weight", own, notes)
    found = tensors.get("lm_head.weight")
    if found is None or not is_copy(found, own[jnp.asarray(ids)]):
        raise ValueError("lm_head.weight is missing or not the target's rows of d2t; it must hold them for a draft vocabulary")
    rest = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    head = {"ids": jnp.asarray(ids), "weight": jnp.asarray(found).astype(own.dtype)}
    return replace(drafter, head=DraftHead(len(ids))), head, rest


LAYOUT = Layout(NAME, claims, to_published, from_published)
