"""A finished run becomes a drafter in the zoo; its card says what was noted; what is not fit is refused."""

import io
import json
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from rich.console import Console

import sdjax
from experiments import publish as publishing
from experiments.publish import Publish, publish
from experiments.train import train
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.core.metrics import Acceptance
from sdjax.core.spec import initialise
from sdjax.drafters.head import DraftHead
from sdjax.drafters.medusa import Medusa
from sdjax.study.card import model_card
from sdjax.study.methods import Method, Promise, with_weights
from sdjax.study.prompts import Prompts
from sdjax.study.report import Equality, Speed, Summary
from sdjax.targets.decoder import Decoder
from sdjax.targets.load import Model
from sdjax.train import saved
from sdjax.train.corpus import Origin, write_corpus
from sdjax.train.documents import Document
from sdjax.train.optimiser import Optimiser
from sdjax.train.saved import notes_of, read_config
from sdjax.train.tiny_model import byte_tokenizer
from sdjax.trees.tree import Tree

TARGET = Decoder(vocab=256, width=16, layers=1, heads=2, kv_heads=1, head_width=8, ffw=24, max_position=512)
MODEL = Model("tiny", TARGET, initialise(TARGET.specs(), jax.random.key(0)), byte_tokenizer(), "sha256:bytes")
DRAFTER = Medusa(Tree.chain(2), head=DraftHead(size=64))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished training run."""
    folder = tmp_path_factory.mktemp("train")
    text = np.frombuffer(b"to learn from, to learn from, again and again", np.uint8).astype(np.int32)
    documents = [Document(text, np.arange(len(text)) > 9, f"d{i}", "own") for i in range(20)]
    write_corpus(folder / "letters", documents, Origin("sha256:bytes", byte_tokenizer().identity, None, 0.75, 0))
    config = TrainConfig(
        name="micro",
        drafter=DRAFTER,
        corpora=(str(folder / "letters"),),
        rows=4,
        length=32,
        optimiser=Optimiser(learning_rate=1e-2, steps=3, warmup=1),
        held_out=HeldOutConfig(Prompts(count=2), max_new=8),
        runs=str(folder),
    )
    assert train(config, MODEL, Console(file=io.StringIO())) == 0
    return folder / "micro"


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "ZOO", tmp_path / "zoo")
    monkeypatch.setitem(publishing.LICENCES, "tiny", "Apache-2.0")
    return tmp_path / "zoo"


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_run_is_shipped_by_its_name(run, zoo, dtype):
    publish(Publish(run, "letters", dtype), MODEL)
    assert [path.name for path in zoo.iterdir()] == ["letters"]
    assert {path.name for path in (zoo / "letters").iterdir()} == {"README.md", saved.CONFIG, saved.DRAFTER}
    drafter, params = sdjax.load_drafter("letters", MODEL)
    before = sdjax.load_drafter(run / "drafter", MODEL)[1]
    off = jax.tree.map(lambda x, y: float(abs(x - y).max()), params, before)
    assert drafter == DRAFTER and (max(jax.tree.leaves(off)) > 0) == (dtype == "int8")
    assert with_weights("shipped", Method(weights="letters"), MODEL)[0] == DRAFTER
    card = (zoo / "letters" / "README.md").read_text(encoding="utf-8")
    assert card == model_card("letters", read_config(zoo / "letters"), size(zoo / "letters"))


def size(folder):
    return sum((folder / name).stat().st_size for name in (saved.CONFIG, saved.DRAFTER))


def test_the_card_says_what_was_noted(run, zoo):
    publish(Publish(run, "letters", "int8"), MODEL)
    config, notes = read_config(zoo / "letters"), notes_of("letters")
    assert notes.items() >= (notes_of(run / "drafter") | {"dtype": "int8"}).items()
    assert notes["acceptance"]["bfloat16"] == json.loads((run / "final.json").read_text())["acceptance"]
    cells = [(dtype, t) for dtype in ("bfloat16", "int8") for t in ("0", "1")]
    for i, (dtype, t) in enumerate(cells):
        config["notes"]["acceptance"][dtype][t]["tau"] = 1.5 + i
    card = model_card("letters", config, 12_345_678)
    assert "12.3 MB as int8" in card
    assert all(f"| {dtype} | {t} | {1.5 + i:.2f} |" in card for i, (dtype, t) in enumerate(cells))
    (corpus,) = notes["data"]
    data = f"| letters | 20 | {corpus['tokens']:,} | {corpus['supervised']:,} | 0.75 | `{corpus['identity']}` |"
    training = ("| optimiser.learning_rate | `0.01` |", "| length | `32` |", "2 prompts (HumanEval), 8 new tokens each")
    loading = ('sdjax.load("tiny")', 'sdjax.load_drafter("letters", model)', "sha256:bytes", "Licence: Apache-2.0")
    assert all(part in card for part in (data, *training, *loading, f"| head | `{DRAFTER.head!r}` |"))
    assert str(run.parent) not in card + (zoo / "letters" / saved.CONFIG).read_text()


@dataclass(frozen=True)
class Swept:
    """A sweep's folder as it is when done, with plain decoding and one trained drafter."""

    folder: object
    training: dict

    def write(self):
        found = Acceptance(40, 1.75, 1.75, 0.75, 0.75, 0.5, (0.5, 0.25), (0.5, 0.5))
        equality, speed = Equality(Promise.TOKENS, 2, 2, 0, 0), Speed(9.0, 1.0, 2.0, 1.375, 1.25, 1.5)
        arms = [Summary(name, "Walk", 1.0, 2, 80, found, {}, equality, speed, None).to_json() for name in ("plain", "trained")]
        (self.folder / "greetings").mkdir(parents=True)
        files = {
            "methods.json": {"plain": {"training": {}}, "trained": {"training": self.training}},
            "greetings/config.json": {"config": {"target": {"dtype": "float32"}}},
            "greetings/summary.json": {"arms": arms, "mismatches": []},
            "greetings/launches.json": [
                {
                    "git": "c0ffee",
                    "device": {"platform": "cpu", "kind": "cpu"},
                    "host": {"cores": 3},
                    "versions": {"jax": "1.2"},
                }
            ],
        }
        for name, content in files.items():
            (self.folder / name).write_text(json.dumps(content))


def test_a_sweeps_rows_of_this_drafter_are_on_the_card(run, zoo, tmp_path):
    Swept(tmp_path / "sweep", notes_of(run / "drafter")).write()
    publish(Publish(run, "letters", sweep=(tmp_path / "sweep",)), MODEL)
    card = (zoo / "letters" / "README.md").read_text(encoding="utf-8")
    row = "| greetings (2) | 1 | trained | bfloat16 | Walk | 1.75 | 0.50 0.25 | 1.38 [1.25, 1.50] | 2/2 |"
    assert row in card and "| plain |" not in card and "at commit c0ffee on cpu (3 cores), jax 1.2" in card
    Swept(tmp_path / "other", notes_of(run / "drafter") | {"step": 9}).write()
    with pytest.raises(ValueError, match="compares plain, trained, none of which is step 3 of run 'micro'"):
        publish(Publish(run, "letters", sweep=(tmp_path / "other",)), MODEL)
    assert (zoo / "letters" / "README.md").read_text(encoding="utf-8") == card


def test_what_is_not_fit_to_be_shipped_is_refused(run, zoo, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no licence is known for drafters of other"):
        publish(Publish(run, "letters"), MODEL._replace(name="other"))
    with pytest.raises(ValueError, match=r"holds no config\.json; give the folder of a training run"):
        publish(Publish(tmp_path, "letters"), MODEL)
    with pytest.raises(ValueError, match="another target"):
        publish(Publish(run, "letters"), MODEL._replace(identity="sha256:other"))
    with pytest.raises(ValueError, match="name is 'a/b'"):
        Publish(run, "a/b")
    with pytest.raises(ValueError, match=r"holds no methods\.json"):
        publish(Publish(run, "letters", sweep=(tmp_path,)), MODEL)
    with pytest.raises(ValueError, match="there is no saved drafter 'first'"):
        with_weights("shipped", Method(weights="first"), MODEL)
    publish(Publish(run, "first"), MODEL)
    for limit, what in (("LARGEST", "letters"), ("ALL", "zoo/ with it")):
        with monkeypatch.context() as patched:
            patched.setattr(publishing, limit, size(zoo / "first") - 1)
            with pytest.raises(ValueError, match=rf"{what} has 0\.0 MB"):
                publish(Publish(run, "letters"), MODEL)
    assert [path.name for path in zoo.iterdir()] == ["first"]
