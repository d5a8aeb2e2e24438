"""Rollouts of other programs: `mugrpo import` and `mugrpo export`."""

from mugrpo.config.base import Extension

extension = Extension(commands=("mugrpo.extensions.exchange.command:add_exchange",))
