"""Comparing methods: studies, bakeoffs, alignment of gradients, and plans of what a run costs."""

from __future__ import annotations

from mugrpo.config.base import Extension

extension = Extension(
    commands=(
        "mugrpo.extensions.lab.commands:add_commands",
        "mugrpo.extensions.lab.plan.command:add_plan",
    )
)
