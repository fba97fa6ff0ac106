"""Small corpora for the suites of training."""

import numpy as np
import tensorflow_datasets as tfds
import tokenizers
from tokenizers import normalizers

from sdjax.targets.tokenizer import Tokenizer
from sdjax.train.corpus import Origin
from sdjax.train.documents import Document

ORIGIN = Origin("sha256:target", "tokenizer", "template", 1.0, 0, {"made": {"by": ["a", "test"]}})


def document(prompt: int, answer: int, name: str = "d", start: int = 0) -> Document:
    """Distinct tokens start, start + 1, …; those of the answer are supervised."""
    tokens = list(range(start, start + prompt + answer))
    return Document.of_spans([(tokens[:prompt], False), (tokens[prompt:], True)], name, "test")


def documents(count: int, seed: int = 0, longest: int = 12, start: int = 0) -> list[Document]:
    """Documents of random lengths, no token of which occurs twice among them."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(count):
        prompt, answer = random.integers(1, longest, 2).tolist()
        made.append(document(prompt, answer, f"d{i}", start))
        start += prompt + answer
    return made


def same(one: Document, other: Document) -> bool:
    equal = np.array_equal(one.tokens, other.tokens) and np.array_equal(one.loss_mask, other.loss_mask)
    return equal and (one.id, one.source) == (other.id, other.source)


class SomeTexts(tfds.core.GeneratorBasedBuilder):
    """A text set such as the public ones."""

    TEXTS = ("ab", "cde", "é")
    VERSION = tfds.core.Version("1.0.0")
    url_infos = None

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, _):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield from ((i, {"text": text}) for i, text in enumerate(self.TEXTS))


def prepare(folder) -> None:
    """SomeTexts, in this data_dir."""
    SomeTexts(data_dir=folder, file_format="array_record").download_and_prepare()


def spaced_tokenizer(template: str) -> Tokenizer:
    """Like Llama 2's: "▁" stands for a space, and before each text; a word and the space before it may be one token."""
    vocab = {text: i for i, text in enumerate(["<s>", "</s>", "?", "▁", *map(chr, range(33, 127))])}
    merges = [("▁", "h"), ("▁h", "i"), ("▁", "y"), ("▁y", "o"), ("▁", "S")]
    vocab |= {one + other: len(vocab) + i for i, (one, other) in enumerate(merges)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges, unk_token="?"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.add_special_tokens(["<s>", "</s>"])
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(backend, bos=0, eos=1, stops=(1,), adds_bos=True, special=special, template=template)
