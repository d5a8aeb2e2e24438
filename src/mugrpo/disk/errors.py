"""The errors that end a command. The command line turns each of them into an exit status."""

from __future__ import annotations


class UsageError(ValueError):
    """Invalid input. The message says where the fault is and how to fix it. Exit status 2."""


class RunStopped(Exception):
    """The stop of a run that can be resumed. Exit status 3, with the command that resumes it."""


class BrokenReward(RunStopped):
    """A reward or an environment broke its contract.

    No second attempt helps: its code has to change.
    """


class Interrupted(RunStopped):
    """A stop by a signal, or because the run asked its ranks to stop."""
