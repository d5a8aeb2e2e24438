"""A viewer of rollouts in the terminal: `mugrpo view`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mugrpo.config.base import Extension

if TYPE_CHECKING:
    from mugrpo.arguments import Commands


def add_view(commands: Commands) -> None:
    """Add the command. Textual is imported only by the viewer."""
    from mugrpo.arguments import LOOK

    text = "list, filter and read rollouts in the terminal"
    command = commands.add(
        "view", text, run="mugrpo.extensions.view.viewer:view", group=LOOK, example="runs/mine"
    )
    command.add_argument("target", type=Path, metavar="RUN", help="a run's directory")


extension = Extension(commands=("mugrpo.extensions.view:add_view",))
