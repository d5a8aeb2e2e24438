"""Comparing methods: studies, bakeoffs and alignment of gradients."""

from mugrpo.config.base import Extension

extension = Extension(commands=("mugrpo.extensions.lab.commands:add_commands",))
