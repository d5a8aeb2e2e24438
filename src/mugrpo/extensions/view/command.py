"""`mugrpo view` on the command line. Textual is imported only by the viewer."""

from __future__ import annotations

import argparse
from pathlib import Path

from mugrpo.arguments import Commands


def add_view(commands: Commands) -> None:
    """Add the command."""
    text = "list, filter and read rollouts in the terminal"
    command = commands.add("view", text, run="mugrpo.extensions.view.command:run_view")
    command.add_argument("target", type=Path, help="a run's directory")


def run_view(options: argparse.Namespace) -> None:
    """Show the run's rollouts until the user leaves."""
    from mugrpo.extensions.view.viewer import view

    view(options.target)
