"""Keeping the libraries below quiet, and their complaints short."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(bars: bool | None = None) -> Iterator[None]:
    """transformers and the hub keep silent, but for progress bars on a terminal.

    bars: whether those of transformers and the hub are shown; None means on a terminal only."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    terminal = sys.stderr.isatty()
    bars = terminal if bars is None else bars
    levels = logging.get_verbosity(), hub_logging.get_verbosity()
    shown = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    with warnings.catch_warnings(), contextlib.ExitStack() as restore:
        warnings.simplefilter("ignore")
        if not terminal:
            restore.enter_context(contextlib.redirect_stderr(io.StringIO()))
        restore.callback(logging.set_verbosity, levels[0])
        restore.callback(hub_logging.set_verbosity, levels[1])
        restore.callback(logging.enable_progress_bar if shown[0] else logging.disable_progress_bar)
        restore.callback(enable_progress_bars if shown[1] else disable_progress_bars)
        logging.set_verbosity_error()
        hub_logging.set_verbosity_error()
        (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
        (enable_progress_bars if bars else disable_progress_bars)()
        yield


def first_line(problem: Exception) -> str:
    """The first line of a complaint, which says the most."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
