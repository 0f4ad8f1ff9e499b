"""Where what was compiled and found is kept."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_folder() -> str | None:
    """The folder that the environment names, as the command does; `None` without a home."""
    if chosen := os.environ.get("ORCHESTRION_CACHE"):
        return chosen
    base = os.environ.get("XDG_CACHE_HOME")
    if base and Path(base).is_absolute():
        return str(Path(base) / "orchestrion")
    home = os.environ.get("HOME")
    return str(Path(home) / ".cache" / "orchestrion") if home else None
