"""A trained block whose folder names the wrong layout loads, and drafts next to nothing: on a prompt it is refused."""

import json

import pytest

from experiments.config import load_file
from experiments.import_drafter import Import, import_drafter
from sdjax.drafters.published.registry import write_folder
from sdjax.targets.load import Model
from sdjax.targets.tokenizer import Tokenizer
from sdjax.train.recipe import Recipe
from sdjax.train.saved import load_drafter, notes_of
from sdjax.train.tiny_model import byte_tokenizer
from tests.train.test_families import CONFIGS
from tests.train.tiny_drafters import TARGET, learn, target_params

pytestmark = pytest.mark.families
PROMPT = """def read(self, size=-1):
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        self._check_can_read()
        return self._buffer.read(size)

    def seek(self, offset, whence=0):
"""


@pytest.fixture(scope="module")
def trained():
    """A model with a block drafter of the tiny world, which fills in."""
    config = load_file(CONFIGS["dflash_tiny"]).get_config()
    recipe = Recipe(TARGET, config.drafter, config.optimiser)
    params, _ = learn(recipe, target_params())
    tokenizer = Tokenizer(byte_tokenizer().backend, template="{{ messages[0].content }}")
    return Model("tiny", TARGET, target_params(), tokenizer, "sha256:tiny"), recipe.drafter, params.drafter


def published(folder, trained, **changes):
    model, drafter, params = trained
    write_folder(folder, "speculators-block", drafter, params, TARGET, model.params, "float32")
    config = json.loads((folder / "config.json").read_text())
    config |= changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_wrong_layout_is_refused_on_a_prompt(trained, tmp_path):
    wrong = published(tmp_path / "wrong", trained, sample_from_anchor=True)
    with pytest.raises(ValueError, match=r"add --block-layout fill_in"):
        import_drafter(Import(wrong, tmp_path / "out", dtype="float32", prompt=PROMPT), trained[0])
    assert not (tmp_path / "out").exists()
    import_drafter(Import(wrong, tmp_path / "out", dtype="float32", prompt=PROMPT, block_layout="fill_in"), trained[0])
    assert load_drafter(tmp_path / "out", trained[0])[0].layout == "fill_in"


def test_an_open_layout_is_told_and_both_readings_are_measured(trained, tmp_path):
    folder = published(tmp_path / "open", trained, sample_from_anchor=None)
    import_drafter(Import(folder, tmp_path / "out", dtype="float32", prompt=PROMPT), trained[0])
    notes = " ".join(notes_of(tmp_path / "out")["imported"]["notes"])
    assert "the block's layout is not given: fill_in" in notes and "read as anchor_first" in notes
