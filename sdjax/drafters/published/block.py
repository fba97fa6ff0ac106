"""What layouts of block drafters share, and DFlash's own: z-lab's, JetSpec's with causal blocks, Domino's with a GRU.

The target's embedding and head are in no such folder, or are copies of the target's. The row of its embedding that masks
read is named by the config: exported and imported drafters keep that very row.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from sdjax.drafters.block import Block, spread_taps
from sdjax.drafters.block_tree import BlockTree
from sdjax.drafters.published.base import (
    Config,
    Exported,
    Imported,
    Layout,
    Tensors,
    drop_copy,
    is_copy,
    layer_names,
    named,
    need_class,
    take,
)
from sdjax.drafters.published.settings import flag, refuse_unknown, shape_from_config, whole
from sdjax.drafters.published.taps import Counting, ids_of, taps_from
from sdjax.targets.decoder import Decoder
from sdjax.targets.hf_config import decoder_to_config

NAME, INNER = "dflash", "dflash_config"
BlockLayout = Literal["fill_in", "anchor_first"]
BlockMask = Literal["full", "causal"]
ANCHOR_FIRST = ("sample_from_anchor", "shift_label", "query_zero_predicts_next")  # three names of one setting
CAUSAL = ("causal", "causal_head", "is_causal")  # and so are these
HEADS = {  # parts of the heads behind the backbone
    "markov": {
        "before": "markov_head.markov_w1.weight",
        "after": "markov_head.markov_w2.weight",
        "gate": "markov_head.gate_proj.weight",
        "gate_bias": "markov_head.gate_proj.bias",
        "joint": "markov_head.joint_proj.weight",
        "joint_bias": "markov_head.joint_proj.bias",
    },
    "domino": {
        "gru_in": "prefix_gru.weight_ih_l0",
        "gru_state": "prefix_gru.weight_hh_l0",
        "narrow": "embed_proj.0.weight",
        "after": "embed_proj.2.weight",
    },
    "confidence": {"weight": "confidence_head.proj.weight", "bias": "confidence_head.proj.bias"},
}
KEYS = {"block_size", "mask_token_id", "target_layer_ids", "num_target_layers", *ANCHOR_FIRST, *CAUSAL}
DOMINO = {"projector_type", "gru_hidden_dim", "emb_dim", "pure_draft_prefix_len"}


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return config.get("architectures") == ["DFlashDraftModel"] and "speculators_model_type" not in config


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """The layout of the block is always written: readers that do not know the key fill in. Of a tree the block is written."""
    notes = ["the recipe of training is left out"]
    if isinstance(drafter, BlockTree):
        notes.append(f"the tree of {drafter.nodes} nodes is left out: readers choose their own")
        drafter = drafter.block
    need_class(drafter, Block, NAME)
    need_plain(drafter, NAME, ("none", "domino"))
    if drafter.confidence:
        raise ValueError("a confidence head has no place in the layout 'dflash'; export as 'deepspec'")
    if drafter.sampled:
        raise ValueError("sampled is on, and readers of the layout 'dflash' draft the argmax of each slot; train without it")
    layers = layers_to_config(drafter, target)
    inner = {
        "mask_token_id": mask_token(drafter, params, target_params),
        "target_layer_ids": ids_of(drafter.taps, "output", target.layers),
        "sample_from_anchor": drafter.layout == "anchor_first",
    }
    if drafter.block_mask == "causal":
        inner["causal_head"] = True
    if drafter.markov == "domino":
        inner |= {"projector_type": "domino", "gru_hidden_dim": drafter.gru, "emb_dim": drafter.rank}
        inner["pure_draft_prefix_len"] = drafter.uncorrected
    config = layers | {
        "architectures": ["DFlashDraftModel"],
        "block_size": drafter.width,
        "num_target_layers": target.layers,
        INNER: inner,
    }
    return Exported(to_tensors(drafter, params, target), config, notes)


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Settings stand in `dflash_config` or above it."""
    notes: list[str] = []
    inner = config.get(INNER) or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f"config.json: {INNER} is {inner!r}; it must be an object")
    settings = {key: one_value(config, inner, key) for key in KEYS}
    domino = {key: one_value(config, inner, key) for key in DOMINO}
    refuse_unknown(inner, KEYS | DOMINO, INNER)
    mine = {key: value for key, value in config.items() if key not in KEYS | DOMINO | {INNER}}
    layout = layout_from(settings, "fill_in", "as the released code reads it", notes)
    drafter = drafter_from(settings, mine, target, layout, "output", notes)
    if drafter.block_mask == "causal":
        drafter = on_backbone(Block.jetspec(drafter.taps, drafter.mask_token, drafter.length), drafter)
    drafter = with_gru(drafter, domino, notes)
    tensors = drop_copy(tensors, "embed_tokens.weight", target_params["embed"], notes)
    return Imported(drafter, from_tensors(drafter, tensors, target, target_params, "a DFlash", {}), notes)


def with_gru(drafter: Block, settings: Mapping[str, Any], notes: list[str]) -> Block:
    """With Domino's correction, where the config has one."""
    if settings["projector_type"] in (None, "dflash"):
        return drafter
    if settings["projector_type"] != "domino":
        raise ValueError(f"config.json: projector_type is {settings['projector_type']!r}; supported: dflash, domino")
    given = {"rank": whole(settings, "emb_dim"), "gru": whole(settings, "gru_hidden_dim")}
    first = settings["pure_draft_prefix_len"]
    if first is None:
        notes.append("pure_draft_prefix_len is not given: 0, as the released code reads it")
    recipe = Block.domino(drafter.taps, drafter.mask_token, 0, drafter.length, **given)
    return on_backbone(recipe, drafter, uncorrected=first or 0)


def on_backbone(recipe: Block, backbone: Block, **changes: Any) -> Block:
    """`recipe` for the layers, their layout and their masks of `backbone`."""
    kept = {name: getattr(backbone, name) for name in ("layers", "layout", "block_mask", "shape", "windows")}
    return replace(recipe, **kept, **changes)


def one_answer(settings: Mapping[str, Any], names: Collection[str], what: str) -> bool | None:
    """What settings that mean the same say; None: nothing. ValueError where they contradict each other."""
    given = {name: flag(settings, name, False, []) for name in names if settings.get(name) is not None}
    if len(set(given.values())) > 1:
        raise ValueError(f"config.json: {given} contradict each other about {what}")
    return next(iter(given.values()), None)


def drafter_from(
    settings: Mapping[str, Any], layers: Config, target: Decoder, layout: BlockLayout, counting: Counting, notes: list[str]
) -> Block:
    """DFlash's recipe with the settings that all these layouts have; `layers` is the config of its layers alone."""
    size, mask = whole(settings, "block_size"), settings.get("mask_token_id")
    if isinstance(mask, bool) or not isinstance(mask, int):
        raise ValueError(f"config.json: mask_token_id is {mask!r}; masks read that row of the target's embedding")
    given = settings.get("num_target_layers")
    if given not in (None, target.layers):
        raise ValueError(f"config.json: num_target_layers is {given}, the target's {target.layers}; it is for another target")
    length = size - (layout == "fill_in")
    model = shape_from_config(layers | {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False}, target, notes)
    ids = settings.get("target_layer_ids")
    if ids is None:
        taps = spread_taps(target.layers, model.layers)
        notes.append(f"target_layer_ids is not given: the released code's, outputs of layers {list(taps)}")
    else:
        taps = taps_from(ids, counting, target.layers)
        if counting == "output" and target.layers - 1 in taps:
            raise ValueError(
                f"config.json: target_layer_ids name the last layer, {target.layers - 1}; transformers norms that state, and "
                "readers differ; block drafters do not tap it"
            )
    block_mask = mask_from(settings, model.windows)
    drafter = Block.dflash(taps, mask, length, layers=model.layers, layout=layout, block_mask=block_mask, windows=model.windows)
    own = replace(model, layers=1, windows=())
    return drafter if own == replace(drafter.model(target), layers=1, windows=()) else replace(drafter, shape=own)


def layout_from(settings: Mapping[str, Any], default: BlockLayout, why: str, notes: list[str]) -> BlockLayout:
    """The block's layout, the most frequent fault of all; where the config leaves it open, `default`, noted."""
    given = one_answer(settings, ANCHOR_FIRST, "the block's layout")
    if given is not None:
        return "anchor_first" if given else "fill_in"
    notes.append(
        f"the block's layout is not given: {default}, {why}; test it on a prompt (--prompt), for the other reading "
        "would load as well, and draft next to nothing"
    )
    return default


def mask_from(settings: Mapping[str, Any], windows: Sequence[int | None]) -> BlockMask:
    """What slots see of each other; ValueError for windows that the config wants to reach ahead, too."""
    causal = one_answer(settings, CAUSAL, "the block's mask")
    if causal is False and any(windows):
        key = next(name for name in CAUSAL if settings.get(name) is False)
        raise ValueError(
            f"config.json: {key} is false, but layers have sliding windows, which end at the query here and so are causal "
            "within the block; this drafter would draft otherwise than it was trained, and is not supported"
        )
    return "causal" if causal else "full"


def readings(drafter: Block) -> dict[str, Block]:
    """The same weights under either layout: a block of as many slots, of which one more predicts where the anchor does."""
    lengths: dict[BlockLayout, int] = {"fill_in": drafter.width - 1, "anchor_first": drafter.width}
    return {layout: replace(drafter, layout=layout, length=length) for layout, length in lengths.items() if length}


def need_plain(drafter: Block, layout: str, markov: tuple[str, ...]) -> None:
    """Raises ValueError for parts that the layout has no place for; `markov` are the kinds of heads that it knows."""
    if drafter.markov not in markov:
        raise ValueError(f"the Markov head {drafter.markov!r} has no place in the layout {layout!r}, which has {markov}")
    if drafter.uncorrected and drafter.markov != "domino":
        raise ValueError(f"the layout {layout!r} corrects every slot, and the first {drafter.uncorrected} here are not")
    if drafter.temperatures:
        raise ValueError(f"the layout {layout!r} has no place for the temperatures of a calibration; set them to ()")
    if drafter.head.trained or drafter.head.bias:
        raise ValueError(f"the head is trained; readers of the layout {layout!r} take the target's")
    if drafter.head.size is not None and layout != "speculators-block":
        raise ValueError(f"the layout {layout!r} holds no draft vocabulary; export as 'speculators-block'")


def mask_token(drafter: Block, params: Any, target_params: Any) -> int:
    """The token whose row masks read; ValueError where they read something else."""
    if drafter.mask_token is None:
        raise ValueError("the mask is a learnt vector, and readers take a row of the target's embedding; train with mask_token")
    if not is_copy(np.asarray(params["mask"]), target_params["embed"][drafter.mask_token]):
        raise ValueError(f"the mask is not the target's row {drafter.mask_token}; the weights are damaged or another target's")
    return drafter.mask_token


def layers_to_config(drafter: Block, target: Decoder) -> Config:
    """The config of the layers, which readers take for Qwen3's."""
    config = decoder_to_config(replace(drafter.model(target), vocab=target.vocab, tied=False))
    if config["model_type"] != "qwen3":
        raise ValueError(f"the layers are {config['model_type']}'s; readers of block drafters know qwen3's (qk_norm)")
    return config


def names_of(drafter: Block, specs: Mapping[str, Any]) -> dict[str, Any]:
    """Published names at the places of the parameters, but for the vocabulary head and the mask's row."""
    names: dict[str, Any] = {name: f"{name}.weight" for name in ("fc", "hidden_norm", "norm")}
    names["layers"] = [layer_names(layer, f"layers.{i}.") for i, layer in enumerate(specs["layers"])]
    kinds = {"markov": "domino" if drafter.markov == "domino" else "markov", "confidence": "confidence"}
    return names | {head: {part: HEADS[kinds[head]][part] for part in specs[head]} for head in kinds if head in specs}


def to_tensors(drafter: Block, params: Any, target: Decoder) -> Tensors:
    """All that is the drafter's own."""
    names = names_of(drafter, drafter.specs(target))
    return named(names, {name: params[name] for name in names})


def from_tensors(
    drafter: Block, tensors: Tensors, target: Decoder, target_params: Any, layout: str, head: Mapping[str, Any]
) -> Any:
    """The parameters; the mask's row is the target's, the vocabulary head is given."""
    specs = drafter.specs(target)
    names = names_of(drafter, specs)
    params = take(names, {name: specs[name] for name in names}, tensors, layout)
    return params | {"mask": target_params["embed"][drafter.mask_token].astype(specs["mask"].dtype), "head": dict(head)}


def one_value(outer: Mapping[str, Any], inner: Mapping[str, Any], key: str) -> Any:
    """A setting that may stand in either place; ValueError where they differ."""
    found = [place[key] for place in (inner, outer) if place.get(key) is not None]
    if len(found) == 2 and found[0] != found[1]:
        raise ValueError(f"config.json: {key} is {found[0]!r} in {INNER} and {found[1]!r} above it")
    return found[0] if found else None


LAYOUT = Layout(NAME, claims, to_published, from_published)
