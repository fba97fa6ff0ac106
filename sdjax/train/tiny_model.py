"""The tiny world's target as a model like any other: trained once, kept in a file, with a tokenizer of bytes."""

import hashlib
import json
from pathlib import Path

import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from sdjax.targets.load import Model, file_identity
from sdjax.targets.tokenizer import Tokenizer
from sdjax.train import tiny_world
from sdjax.train.described import describe
from sdjax.train.saved import flat, read_params

NAME = "tiny"


def tiny_model(folder: Path, optimiser: tiny_world.Optimiser = tiny_world.OPTIMISER) -> Model:
    """The model, from `folder` or trained there: its file's name is a hash of all that made it.

    ValueError, before it is trained, where the folder cannot be written.
    """
    text = hashlib.sha256(tiny_world.text().tobytes()).hexdigest()
    made_of = json.dumps([describe(tiny_world.TARGET), describe(optimiser), text])
    path = folder / f"tiny-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.safetensors"
    if not path.exists():
        hidden = path.with_name(f".{path.name}.part")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            hidden.touch()
        except OSError as error:
            raise ValueError(
                f"{folder}, where the tiny world's target is kept, cannot be written ({error}); keep runs elsewhere"
            ) from error
        print(f"training the tiny world's target, once, for {path}: some minutes", flush=True)
        save_file(flat(tiny_world.train_target(optimiser=optimiser), "float32"), hidden)
        hidden.replace(path)
    params = read_params(path, tiny_world.TARGET.specs(), "the tiny target")
    return Model(NAME, tiny_world.TARGET, params, byte_tokenizer(), file_identity([path]))


def byte_tokenizer() -> Tokenizer:
    """Each byte of UTF-8 is a token, of which it is the id."""
    backend = tokenizers.Tokenizer(models.WordLevel({letter: byte for byte, letter in enumerate(letters())}, "\x00"))
    apart = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(False, use_regex=False), apart])
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def letters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (Radford et al. 2019)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
