"""Processes that find each other, and the one that speaks."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sdjax.mesh.start import NAMED, join_pod, say, speaks

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import jax, numpy as np
from sdjax.mesh.start import join_pod, say
join_pod()
from jax.experimental.multihost_utils import process_allgather
say(f"{jax.process_count()} processes, {process_allgather(np.array(jax.process_index())).tolist()}")
"""


def test_alone_nothing_is_joined_and_the_process_speaks(capsys):
    join_pod({})
    assert speaks()
    say("here")
    assert capsys.readouterr().out == "here\n"


def test_half_a_name_is_refused():
    with pytest.raises(ValueError, match="JAX_NUM_PROCESSES, JAX_PROCESS_ID are missing"):
        join_pod({"JAX_COORDINATOR_ADDRESS": "localhost:1"})
    with pytest.raises(ValueError, match="JAX_PROCESS_ID is 'first'"):
        join_pod(dict(zip(NAMED, ("localhost:1", "2", "first"), strict=True)))


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
    ours = [[line for line in out.splitlines() if not line.startswith("[Gloo]")] for out, _ in said]  # it prints by itself
    assert ours == [["2 processes, [0, 1]"], []]
