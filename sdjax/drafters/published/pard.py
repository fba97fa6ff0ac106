"""PARD as AMD publishes it: a causal language model's folder, and in its config the token that stands for masks."""

from collections.abc import Collection, Mapping
from typing import Any

from sdjax.drafters.head import DraftHead
from sdjax.drafters.pard import Pard
from sdjax.drafters.published.base import Config, Exported, Imported, Layout, Tensors, named, need_class, take
from sdjax.targets.decoder import Decoder
from sdjax.targets.hf_config import decoder_from_config, decoder_to_config
from sdjax.targets.huggingface import NAMES
from sdjax.targets.weights import weight_names

NAME, TOKEN, KIND = "pard", "pard_token", "spd_type"


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return TOKEN in config


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    need_class(drafter, Pard, NAME)
    if drafter.mask_token is None:
        raise ValueError("readers keep the mask as a row of the embedding; train with mask_token, a token that no text has")
    if drafter.head != DraftHead():
        raise ValueError(f"the head is a {drafter.head}; readers of the layout {NAME!r} know the model's own")
    tensors = named(weight_names(drafter.model, NAMES), params)
    config = decoder_to_config(drafter.model) | {TOKEN: drafter.mask_token, KIND: NAME}
    return Exported(
        tensors, config, [f"the length {drafter.length}, the recipe of training, and whether drafts are sampled, are left out"]
    )


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Drafts the default length of `Pard`, which the layout does not hold."""
    token = config[TOKEN]
    if isinstance(token, bool) or not isinstance(token, int) or config.get(KIND, NAME) != NAME:
        raise ValueError(f"config.json: {TOKEN} is {token!r} and {KIND} {config.get(KIND)!r}; expected a token and {NAME!r}")
    shape = {key: value for key, value in config.items() if key not in (TOKEN, KIND)}
    drafter = Pard(decoder_from_config(shape, target.precision), mask_token=token)
    names, specs = weight_names(drafter.model, NAMES), drafter.specs(target)
    notes = [f"the length is not in the folder: {drafter.length}"]
    return Imported(drafter, take(names, specs, tensors, "a PARD"), notes)


LAYOUT = Layout(NAME, claims, to_published, from_published)
