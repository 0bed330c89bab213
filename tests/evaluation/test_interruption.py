"""Signals that ask a process to end; what a run makes of them is in test_runner.py."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from evaluation import interruption
from evaluation.interruption import Interrupted, interruptible


def test_a_signal_that_is_ignored_stays_ignored():
    """As nohup and the background of a shell start a process."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_counts_until_the_block_ends():
    with pytest.raises(Interrupted, match="SIGTERM"), interruptible():
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        interruption.check()
    interruption.check()


def test_another_thread_has_no_signals_of_its_own():
    before, found = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        with interruptible():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]
