"""Configs: frozen dataclasses, made by plain Python files, any field of which the command line can change."""

import argparse
import difflib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import tyro

import sdjax
from experiments.launch import ROOT
from sdjax.mesh.layout import Layout, Rules, make_mesh
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts
from sdjax.targets.load import Model


@dataclass(frozen=True)
class TargetConfig:
    """The model that is accelerated."""

    name: str = "smollm2-135m"
    """A known name, a GGUF file, a folder in Hugging Face layout, or a Hub id."""
    dtype: str = "float32"
    """float32 (where equality is promised), bfloat16, or mixed: bfloat16 matrices and float32 else, for CPUs that have AMX."""
    flash: bool = False
    """Reads long caches by a kernel, on TPUs: see docs/scale.md for where it pays. Elsewhere nothing changes."""

    def load(self) -> Model:
        """The model, as `sdjax.load` finds it; ValueError says what is unknown, missing or damaged."""
        model = sdjax.load(self.name, self.dtype)
        return model._replace(target=replace(model.target, flash=self.flash))


@dataclass(frozen=True)
class MeshConfig:
    """What devices are used for; a single one is no mesh."""

    data: int = 0
    """Parts of a batch; 0: all devices that are left."""
    fsdp: int = 1
    """Parts of a batch, between which what is trained is split too, and gathered where it is used."""
    model: int = 1
    """Parts of heads, feed-forward layers and vocabulary."""

    def __post_init__(self):
        if self.data < 0 or self.fsdp < 1 or self.model < 1:
            raise ValueError(f"a mesh of {self.data} × {self.fsdp} × {self.model}; fsdp and model must be ≥ 1, data ≥ 0")

    def layout(self, rules: Rules, devices: Sequence[jax.Device] | None = None) -> Layout | None:
        """On these devices (default: those of all processes); ValueError where they do not make this mesh."""
        devices = jax.devices() if devices is None else devices
        data = self.data or max(len(devices) // (self.fsdp * self.model), 1)
        if len(devices) == data * self.fsdp * self.model == 1:
            return None
        return Layout(make_mesh(data, self.fsdp, self.model, devices), rules)


@dataclass(frozen=True)
class DecodeConfig:
    """One comparison of methods on the same prompts."""

    name: str
    """The run's folder is runs/NAME; a run that was stopped goes on there."""
    methods: dict[str, Method]
    """What is compared, by name. The first is plain decoding, the baseline."""
    prompts: Prompts = Prompts()
    rule: Sampling = Sampling()
    target: TargetConfig = TargetConfig()
    decode: Decoding = Decoding()
    mesh: MeshConfig = MeshConfig()
    """How devices share the work."""
    runs: str = "runs"
    """Where run folders are."""
    stream: bool = False
    """Prints each answer as it comes (batches of one). Clocks then include what the terminal costs."""

    def __post_init__(self):
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ValueError(f"name is {self.name!r}; it names a folder, so it must not be empty, hidden or hold a slash")
        if self.stream and self.decode.batch != 1:
            raise ValueError(f"stream shows one answer at a time, but decode.batch is {self.decode.batch}; set it to 1")


def parse(arguments: Sequence[str], program: str, folder: str, kind: type = DecodeConfig) -> Any:
    """The config of `--config FILE`, of the given kind, with the rest of the command line applied to it.

    Leaves (SystemExit 2) for an option that no field has, naming the nearest; ValueError for a file that is unknown or
    holds another kind of config.
    """
    first = argparse.ArgumentParser(prog=program, add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    given, rest = first.parse_known_args(arguments)
    if given.config is None:
        raise ValueError(f"give --config FILE; these are here:\n{catalogue(folder)}\n(with --config, --help lists every field)")
    config, about = read_config(given.config, program, folder, kind)
    parsed = tyro.cli(
        kind,
        default=config,
        args=rest,
        prog=f"{program} --config {given.config}",
        description=about,
        config=(tyro.conf.AvoidSubcommands,),
    )
    refuse_buckets(parsed)
    return parsed


def read_config(name: str, program: str, folder: str, kind: type) -> tuple[Any, str | None]:
    """What the file holds, and its docstring; ValueError for one that is unknown, faulty, or of another program."""
    path = find_config(name, folder)
    module = load_file(path)
    with faults_of(path):
        config = module.get_config()
    if not isinstance(config, kind):
        raise ValueError(f"--config: {name} holds a {type(config).__name__}, and {program} takes another kind, {kind.__name__}")
    return config, module.__doc__


def refuse_buckets(config: Any) -> None:
    """ValueError for a bucket where files are read and written by their path."""
    for name in ("runs", "corpora", "features"):
        given = getattr(config, name, ())
        for path in (given,) if isinstance(given, str) else given:
            if "://" in path:
                raise ValueError(
                    f"--{name} is {path!r}; it must be a folder of this machine. On a pod experiments/tpu/run.sh brings the "
                    "bucket's runs/ to every host and sends it back; --checkpoints alone may be a path in a bucket"
                )


def find_config(name: str, folder: str = "") -> Path:
    """The file, from here or from the repository's root; ValueError suggesting the nearest one in the folder of configs."""
    for path in (Path(name), ROOT / name):
        if path.is_file():
            return path
    known = [str(path.relative_to(ROOT)) for path in config_files(folder)]
    near = difflib.get_close_matches(name, known, 1, 0.3)
    hint = f"did you mean {near[0]!r}?" if near else f"these are here:\n{catalogue(folder)}"
    raise ValueError(f"--config: there is no file {name!r}; {hint}")


def config_files(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / "configs" / folder).rglob("*.py") if path.name != "__init__.py")


def catalogue(folder: str) -> str:
    """Every config with the first line of its docstring."""
    lines = [
        (path.relative_to(ROOT), path.read_text(encoding="utf-8").lstrip('"').partition("\n")[0])
        for path in config_files(folder)
    ]
    return "\n".join(f"  {path}  {title}" for path, title in lines)


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """What goes wrong in a config file is a ValueError that names the file and its line."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"--config: {where}: {kind}{error}") from error


def load_file(path: Path) -> Any:
    """A config file as a module."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--config: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    with faults_of(path):
        spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ValueError(f"--config: {path} has no get_config()")
    return module
