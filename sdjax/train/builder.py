"""A corpus as a tensorflow-datasets builder: ArrayRecord files, written and read without TensorFlow."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_pb2

from sdjax.train.documents import Document

NAME, VERSION, SPLIT = "sdjax_corpus", "1.0.0", "train"


class SdjaxCorpus(tfds.core.GeneratorBasedBuilder):
    """Documents in the order given. `tfds.data_source("sdjax_corpus", data_dir=folder)` opens what was written."""

    name = NAME
    VERSION = tfds.core.Version(VERSION)
    url_infos = None  # nothing is downloaded; looking for checksums needs a package that tfds forgets to require

    def __init__(self, documents: Iterable[Document] = (), metadata: Mapping[str, Any] | None = None, **options: Any):
        self._documents, self._metadata = documents, metadata
        super().__init__(**({"file_format": "array_record"} | options))

    def _info(self) -> tfds.core.DatasetInfo:
        vector = lambda dtype: tfds.features.Tensor(shape=(None,), dtype=dtype)
        text = tfds.features.Text
        return tfds.core.DatasetInfo(
            builder=self,
            description="Token ids to train drafters on, and which of them are supervised.",
            features=tfds.features.FeaturesDict(
                {"tokens": vector(np.int32), "loss_mask": vector(np.bool_), "id": text(), "source": text()}
            ),
            metadata=tfds.core.MetadataDict(self._metadata or {}),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager  # nothing is downloaded
        return {SPLIT: self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for i, d in enumerate(self._documents):
            yield i, {"tokens": d.tokens, "loss_mask": d.loss_mask, "id": d.id, "source": d.source}


def build(folder: Path, documents: Iterable[Document], metadata: Mapping[str, Any]) -> None:
    """Writes folder/sdjax_corpus/1.0.0."""
    tfds.disable_progress_bar()
    with redirect_stdout(StringIO()):  # tfds talks of downloads
        SdjaxCorpus(documents, metadata, data_dir=folder).download_and_prepare()
    shutil.rmtree(folder / "downloads")
    for shard in (folder / NAME / VERSION).glob("*.array_record*"):
        settle(shard)


def settle(shard: Path) -> None:
    """Writes a shard anew with its features in order: tfds writes them in one that changes from process to process."""
    hidden = shard.with_name(f".{shard.name}.part")
    reader, writer = ArrayRecordReader(str(shard)), ArrayRecordWriter(str(hidden), "group_size:1")
    for i in range(reader.num_records()):
        (record,) = reader.read([i])
        writer.write(tf_example_pb2.Example.FromString(record).SerializeToString(deterministic=True))
    writer.close()
    reader.close()
    hidden.replace(shard)


def data_source(folder: Path) -> Any:
    """Random access to the records of folder/sdjax_corpus/1.0.0."""
    return tfds.builder_from_directory(folder / NAME / VERSION).as_data_source(split=SPLIT)
