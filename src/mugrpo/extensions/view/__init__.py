"""A viewer of rollouts in the terminal: `mugrpo view`."""

from __future__ import annotations

from mugrpo.config.base import Extension

extension = Extension(commands=("mugrpo.extensions.view.command:add_view",))
