"""How a process is asked to end: what it has computed stays, and the same command goes on from there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_received: list[str] = []  # signals that asked this process to end


class Interrupted(KeyboardInterrupt):
    """The process was asked to end; what is recorded stays, and the same command goes on from there."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it, SIGTERM, SIGUSR1 and Ctrl-C raise `Interrupted`: at once, or at the latest before the next batch.

    Schedulers send these before a time limit or a preemption. Python drops an exception that rises while an object
    is being destroyed or a callback runs; the next batch therefore asks again. A signal that is ignored stays
    ignored. Outside the main thread it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> None:
        _received.append(signal.Signals(number).name)
        raise Interrupted(_received[-1])

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


def check() -> None:
    """Errors: Interrupted if a signal has come, and its own exception was dropped."""
    if _received:
        raise Interrupted(_received[-1])
