"""What every launcher does first and notes down: its command line, the compilation cache, and what ran where."""

import argparse
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import jax
import tyro

Said = TypeVar("Said")
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "sdjax",
    "jax",
    "jaxlib",
    "libtpu",
    "numpy",
    "scipy",
    "flax",
    "tokenizers",
    "gguf",
    "optax",
    "orbax-checkpoint",
    "grain",
)


def use_compilation_cache() -> Path | None:
    """Compiled programs are kept between runs, in $SDJAX_CACHE or the user's cache folder; SDJAX_CACHE= (empty): nowhere."""
    given = os.environ.get("SDJAX_CACHE")
    if given == "":
        return None
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = (Path(given).expanduser() if given else user / "sdjax") / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


@contextmanager
def in_host_memory() -> Iterator[None]:
    """Arrays are made there, and not on the first accelerator, which has no room for what a mesh is to share."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names others alone
        yield
        return
    with jax.default_device(device):
        yield


def decode_in_float32() -> None:
    """Keeps compiled programs, and has accelerators multiply float32 in full: what equality and costs are claimed for."""
    use_compilation_cache()
    jax.config.update("jax_default_matmul_precision", "float32")


@contextmanager
def mistakes_end_the_program() -> Iterator[None]:
    """A ValueError, the caller's mistake, is one line on stderr and exit code 2, without a traceback; Ctrl-C is code 130."""
    try:
        yield
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def command_line(
    name: str, kind: type[Said], about: str | None, arguments: Sequence[str] | None = None, config: Sequence[Any] = ()
) -> Said:
    """What the command line (default: this process's) says to experiments.NAME; `about` stands above its --help."""
    return tyro.cli(kind, args=arguments, prog=f"python -m experiments.{name}", description=about, config=tuple(config))


def takes_no_arguments(name: str, about: str | None, arguments: Sequence[str] | None = None) -> None:
    """Leaves where experiments.NAME is told anything: with `about` for --help, else with exit code 2."""
    kept = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(f"python -m experiments.{name}", description=about, formatter_class=kept).parse_args(arguments)


def folder_for(path: Path, option: str) -> Path:
    """The folder that an option names, made where it is not there; ValueError where nothing can be written into it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError("it is not ours to write")
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error}); give {option} a folder that can") from error
    return path


def launch_identity() -> dict[str, Any]:
    """When, what and where: for the results' sake, since figures move with each of these."""
    config: Any = jax.config
    devices = jax.devices()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "git": git_commit(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := package_version(name))},
        "device": {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)},
        "host": {"machine": platform.machine(), "system": platform.system(), "cores": cores()},
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "matmul_precision": config.jax_default_matmul_precision,
    }


def cores() -> int | None:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """The commit that runs, marked "+changes" if files differ from it; None outside a repository."""
    try:
        commit = git("rev-parse", "HEAD")
        return commit + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
