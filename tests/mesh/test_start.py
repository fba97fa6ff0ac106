"""Processes that find each other, and the one that speaks."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from sdjax.mesh.start import NAMED, join_pod, speaks

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import jax, numpy as np
from sdjax.mesh.start import join_pod, speaks
from tests.mesh.native import only_python_speaks
only_python_speaks()
join_pod()
from sdjax.train.hosts import gather, told_by_first
told = gather(told_by_first({"text": "é" * (1 + jax.process_index())}))
if speaks():
    print(f"{jax.process_count()} processes, {gather(jax.process_index())}, {told}")
else:
    gather(jax.process_index())
"""


def test_alone_nothing_is_joined_and_the_process_speaks():
    join_pod({})
    assert speaks()


def test_half_a_name_is_refused():
    with pytest.raises(ValueError, match="JAX_NUM_PROCESSES, JAX_PROCESS_ID are missing"):
        join_pod({"JAX_COORDINATOR_ADDRESS": "localhost:1"})
    with pytest.raises(ValueError, match="JAX_PROCESS_ID is 'first'"):
        join_pod(dict(zip(NAMED, ("localhost:1", "2", "first"), strict=True)))


def test_sigterm_ends_a_process_that_has_joined():
    """JAX's own notifier would catch it, and the process would go on."""
    leaves = "import os, signal, time; from sdjax.mesh.start import join_pod; join_pod(); os.kill(os.getpid(), signal.SIGTERM)"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | dict(zip(NAMED, (address, "1", "0"), strict=True))
    command = [sys.executable, "-c", f"{leaves}; time.sleep(10)"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGTERM, done.stderr


def test_a_jax_that_has_no_such_notifier_is_joined_all_the_same(monkeypatch):
    def unknown(name, value):
        raise AttributeError(f"Unrecognized config option: {name}")

    joined = []
    monkeypatch.setattr(jax.config, "update", unknown)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *words: joined.append(words))
    join_pod({"SDJAX_POD": "1"})
    assert joined == [()]


def test_two_processes_on_loopback_meet_and_one_speaks():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu"} | dict(zip(NAMED, (address, "2", str(i)), strict=True)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [out for out, _ in said] == ["2 processes, [0, 1], [{'text': 'é'}, {'text': 'é'}]\n", ""]
