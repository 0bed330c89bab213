"""What several test files need: the benchmark data where it is at hand, and tiny models that need no download."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real benchmark files that developers keep beside the checkout."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real benchmark files (../shared/data) are not on this machine")
    return folder
