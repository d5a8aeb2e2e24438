"""The errors that end a command. The command line turns each of them into an exit status."""

from __future__ import annotations


class UsageError(ValueError):
    """Bad input. The message names the place and the way out. Exit status 2."""


class RunStopped(Exception):
    """A stop of a run that can be resumed. Exit status 3, and the command that resumes it."""


class Interrupted(RunStopped):
    """A stop by a signal, or because the run asked its ranks to stop."""
