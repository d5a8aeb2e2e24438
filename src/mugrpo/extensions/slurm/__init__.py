"""Runs as jobs of Slurm: `mugrpo submit`."""

from mugrpo.config.base import Extension

extension = Extension(
    commands=("mugrpo.extensions.slurm.command:add_submit",),
    status=("mugrpo.extensions.slurm.status:lines",),
)
