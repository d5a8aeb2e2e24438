"""The ways a command ends other than well. The command line turns them into exit statuses."""

from __future__ import annotations


class UsageError(ValueError):
    """Bad input: one or two sentences that name the place and the way out. Exit status 2."""


class RunStopped(Exception):
    """A run that cannot go on now but can be resumed. Exit status 3, with the sentence to type."""


class Interrupted(RunStopped):
    """A signal asked the run to stop."""
