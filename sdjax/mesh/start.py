"""The one place where the processes of a pod find each other, and where it is said which of them speaks.

On a pod the same command runs once on every host. Three variables name a process (JAX_COORDINATOR_ADDRESS,
JAX_NUM_PROCESSES, JAX_PROCESS_ID); with SDJAX_POD=1 the machine's own metadata do, as on Cloud TPU and GKE.
"""

import os
from collections.abc import Mapping
from contextlib import suppress

import jax

NAMED = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def join_pod(environment: Mapping[str, str] = os.environ) -> None:
    """Waits for the other processes, before any device is used; does nothing where there are none."""
    given = [name for name in NAMED if environment.get(name)]
    if given and len(given) < len(NAMED):
        lacking = ", ".join(name for name in NAMED if name not in given)
        raise ValueError(f"{', '.join(given)} say that this is one of several processes, but {lacking} are missing")
    if given:
        address, processes, own = NAMED
        leave_sigterm_alone()
        jax.distributed.initialize(environment[address], whole(environment, processes), whole(environment, own))
    elif environment.get("SDJAX_POD") == "1":
        leave_sigterm_alone()
        jax.distributed.initialize()


def leave_sigterm_alone() -> None:
    """Has JAX install no handler of its own, which would let a process that is asked to leave live on."""
    with suppress(AttributeError):  # an option that a later JAX may do without
        jax.config.update("jax_enable_preemption_service", False)


def whole(environment: Mapping[str, str], name: str) -> int:
    """A variable as a number ≥ 0."""
    if not environment[name].isdecimal():
        raise ValueError(f"{name} is {environment[name]!r}; it must be a whole number")
    return int(environment[name])


def speaks() -> bool:
    """Whether this process prints and writes summaries: the first does, alone."""
    return jax.process_index() == 0
