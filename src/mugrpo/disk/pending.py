"""Updates that no published checkpoint holds yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Pending(Protocol):
    """A checkpoint that is being written beside other work."""

    update: int
    starts: tuple[int, ...]  # `Schedule.starts`
    folder: Path  # where it is written, before it is published

    def ready(self) -> None:
        """Wait until the model's files are complete. Raises what ended the writing, if it failed.

        The optimizer's state may follow later.
        """

    def published(self, *, wait: bool) -> bool:
        """Return whether the checkpoint is published. Raises what ended the writing."""


@dataclass(frozen=True)
class Unsaved:
    """Updates that the ranks' memory holds, and a folder with their model for engines.

    A checkpoint may hold them, too.
    """

    update: int
    starts: tuple[int, ...]  # `Schedule.starts`
    folder: Path
