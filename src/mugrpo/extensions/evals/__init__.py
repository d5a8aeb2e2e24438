"""Benchmark suites: `mugrpo benchmark`, and evaluation.suites during training."""

from mugrpo.config.base import Extension

extension = Extension(
    measures="mugrpo.extensions.evals.in_training:Suites",
    suites="mugrpo.extensions.evals.options:suites_in",
    witnesses=("mugrpo.extensions.evals.witness:suite_fault",),
    sections=("mugrpo.extensions.evals.figures:section",),
    commands=("mugrpo.extensions.evals.command:add_benchmark",),
)
