"""Leaving in good order: SIGTERM (preemption) and SIGINT are noted, and the loop looks when a step is done."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Asked:
    """Whether the process was asked to leave; true where it was. `name` is the signal's, empty before."""

    def __init__(self):
        self.name = ""

    def __bool__(self) -> bool:
        return bool(self.name)


@contextmanager
def asked_to_leave() -> Iterator[Asked]:
    """Catches the first of the signals; a second one acts as ever."""
    asked = Asked()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        asked.name = signal.Signals(number).name
        put_back()

    for number in before:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        put_back()
