"""Progress of compilations: bars in terminals and notebooks, lines in logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

_LOG = logging.getLogger("orchestrion")

Report = Callable[[str, int, int], None]


class Progress:
    """A bar of `tqdm` per stage if it is installed and wanted; stages are logged at level DEBUG in any case."""

    def __init__(self, shown: bool) -> None:
        self._bar: Any = None
        self._stage = ""
        self._logged = ""
        self._tqdm: Any = None
        if shown:
            try:
                from tqdm.auto import tqdm

                self._tqdm = tqdm
            except ImportError:
                _LOG.info("no progress is shown: install the extra `orchestrion[progress]`")

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            # Work begins without a stage.
            self.close()
            self._stage = stage
        if not stage:
            return
        if self._bar is None and self._logged != stage:
            self._logged = stage
            _LOG.debug("%s (%d parts)", stage, total)
            if self._tqdm is not None:
                self._bar = self._tqdm(total=total or None, desc=stage, leave=False)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def is_interactive() -> bool:
    """True in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
