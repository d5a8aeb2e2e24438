"""Rollouts of other programs: `mugrpo import` and `mugrpo export`."""

from __future__ import annotations

from mugrpo.config.extensions import Extension

extension = Extension(commands=("mugrpo.extensions.exchange.command:add_exchange",))
