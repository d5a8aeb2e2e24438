"""The errors that end a command. The command line turns each of them into an exit status."""

import os

EXIT_STATUSES = {
    0: "success",
    2: "refused: one sentence says what is wrong and what to do",
    3: "stopped, and can be resumed: the message says what to type",
    4: "finished, but nothing was learned: no update had a gradient",
    130: "a second Ctrl-C: quit at once; the run can still be resumed",
}


def absent(path: object, what: str = "file") -> str:
    """Return a clause that says there is no file `path`, and where it was looked up."""
    here = "" if os.path.isabs(str(path)) else f" in {os.getcwd()}, the working directory"
    return f"there is no {what} {path}{here}"


class UsageError(ValueError):
    """Invalid input. The message says where the fault is and how to fix it. Exit status 2."""


class Locked(UsageError):
    """Another process has the run."""


class RunStopped(Exception):
    """The stop of a run that can be resumed. Exit status 3, with the command that resumes it."""


class BrokenReward(RunStopped):
    """A reward or an environment broke its contract.

    No second attempt helps: its code has to change.
    """


class Interrupted(RunStopped):
    """A stop by a signal, by a collapse, or because the run asked its ranks to stop."""
