"""A corpus of documents on disk: a folder with manifest.json and, beside it, a dataset of tensorflow-datasets.

The folder is made under a temporary name and renamed at the end; the manifest holds the hash of every other file.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sdjax.targets.load import Model
from sdjax.train.builder import NAME, VERSION, build, data_source
from sdjax.train.documents import Document, windows

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Origin:
    """Where a corpus comes from. `target_identity` and `temperature` are None for text that no target sampled."""

    target_identity: str | None
    tokenizer_identity: str
    template_hash: str | None
    temperature: float | None
    seed: int
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """JSON data: whatever else decided its contents."""

    @classmethod
    def of(cls, model: Model, temperature: float | None, seed: int, recipe: Mapping[str, Any] | None = None) -> "Origin":
        """Text that `model` sampled at `temperature`; None: text in its tokens, but not of its making."""
        template = model.tokenizer.template
        return cls(
            None if temperature is None else model.identity,
            model.tokenizer.identity,
            None if template is None else hashlib.sha256(template.encode()).hexdigest(),
            temperature,
            seed,
            recipe or {},
        )


@dataclass(frozen=True)
class Manifest(Origin):
    """What a corpus holds: counts, and the SHA-256 of each file. `dropped` documents had nothing supervised."""

    documents: int = 0
    tokens: int = 0
    supervised: int = 0
    dropped: int = 0
    sources: Mapping[str, int] = field(default_factory=dict)
    """Documents by source."""
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """SHA-256 of the manifest: two corpora with the same one hold the same, of the same origin."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()


class Corpus(Sequence[Document]):
    """Documents by index, read when asked for; made by `open_corpus`."""

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder, self.manifest = folder, manifest
        self._records = data_source(folder)

    def __len__(self) -> int:
        return self.manifest.documents

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"document {i} of {len(self)}")
        row = self._records[int(i) % len(self)]
        return Document(row["tokens"], row["loss_mask"], row["id"].decode(), row["source"].decode())


def write_corpus(
    folder: str | Path, documents: Iterable[Document], origin: Origin, longest: int | None = None, writer: int = 0
) -> Manifest:
    """Makes the corpus; documents without supervision are left out and counted.

    Of a document of more than `longest` tokens, the window that ends at its last supervised token is kept. Processes
    that may write the same folder at once have different `writer`s. ValueError if the folder exists already, or if
    nothing is supervised: nothing is left behind.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} exists already; remove it, or write to another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    hidden = folder.with_name(f".{folder.name}.part{writer}")
    shutil.rmtree(hidden, ignore_errors=True)
    tally = Tally(longest)
    kept = tally.kept(documents)
    first = next(kept, None)
    if first is None:
        raise ValueError(f"{folder}: of {tally.dropped} documents none has a supervised token; there is nothing to learn from")
    described = {key: value for key, value in dataclasses.asdict(origin).items() if value is not None}
    try:
        build(hidden, chain([first], kept), described)
        manifest = Manifest(**vars(origin), **tally.counts(), files=hashes(hidden))
        (hidden / MANIFEST).write_text(to_json(manifest), encoding="utf-8")
        hidden.rename(folder)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return manifest


@dataclass
class Tally:
    """Counts documents while they pass."""

    longest: int | None
    documents: int = 0
    tokens: int = 0
    supervised: int = 0
    dropped: int = 0
    sources: dict[str, int] = field(default_factory=dict)

    def kept(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            pieces = windows(document, self.longest or len(document.tokens))
            if not pieces:
                self.dropped += 1
                continue
            self.documents += 1
            self.tokens += len(pieces[-1].tokens)
            self.supervised += pieces[-1].supervised
            self.sources[document.source] = self.sources.get(document.source, 0) + 1
            yield pieces[-1]

    def counts(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "longest"}


def open_corpus(folder: str | Path) -> Corpus:
    """The corpus in a folder, every file of it checked. ValueError names the file that is missing or damaged, and the fix."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing; the corpus is incomplete: remove {folder} and make it again")
        if hash_of(path) != expected:
            raise ValueError(f"{path} is damaged (its SHA-256 is not the manifest's); remove {folder} and make it again")
    return Corpus(folder, manifest)


def read_manifest(folder: Path) -> Manifest:
    """manifest.json of a corpus, without a look at the other files."""
    path = folder / MANIFEST
    if not path.is_file():
        what = "is no corpus" if folder.is_dir() else "is not there"
        raise ValueError(f"{folder} {what} ({path} is missing); make one with: python -m experiments.rollout")
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove {folder} and make the corpus again") from error


def check_target(corpora: Iterable[Corpus], model: Model) -> None:
    """ValueError for a corpus in another tokenizer's ids, or sampled by another target."""
    for corpus in corpora:
        origin = corpus.manifest
        if origin.tokenizer_identity != model.tokenizer.identity:
            raise ValueError(
                f"{corpus.folder} holds ids of another tokenizer than {model.name}'s; make it again for this target"
            )
        if origin.target_identity not in (None, model.identity):
            raise ValueError(
                f"{corpus.folder} was sampled by another target ({origin.target_identity}) than {model.name} "
                f"({model.identity}); make a corpus of this one"
            )


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of the dataset, by path."""
    paths = sorted(path for path in (folder / NAME / VERSION).iterdir() if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_of(path) for path in paths}


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(manifest: Manifest) -> str:
    return json.dumps(dataclasses.asdict(manifest), indent=2, sort_keys=True) + "\n"
