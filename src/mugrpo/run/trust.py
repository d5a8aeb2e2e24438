"""Whether this user has run or approved, on this machine, what a run directory names.

A config is a program that its user runs, so it never asks. A run directory is data, whoever made
it, and asks for what is not known here. Known is what configs have named and what was approved:
a file NAME/CONTENT each in `mugrpo/trusted` of $XDG_STATE_HOME (by default ~/.local/state), where
NAME is a hash of the option and its value, and CONTENT of the files behind it. Nothing in a run
counts, so copies, archives and edits of one can claim nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import Unapproved
from mugrpo.run.named import Named, named_by

_TABLES = ("engine.arguments", "environment.kwargs")  # an override adds to them
_known: set[Named] = set()  # to this process alone, as the folder cannot be written to


def require_known(
    config: RunConfig,
    stored: RunConfig | None,
    root: object,
    say: Callable[[str], None],
    *,
    trust: bool,
    force: bool = False,
) -> None:
    """Raise UsageError if `config` names what `stored` names and what is not known here.

    `stored` is the config in the run's directory `root`, or None; what else `config` names is the
    user's own. `trust` approves everything, `force` one's own file, edited.
    """
    # An override changes a hash or a table in part, and what is left of it is still theirs.
    named = [one for one in named_by(stored) if not _is_known(one)] if stored and not trust else []
    theirs = {one.option if one.option in _TABLES else (one.option, one.text) for one in named}
    unknown = [
        one
        for one in named_by(config)
        if theirs & {one.option, (one.option, one.text)} and not _is_known(one)
    ]
    changed = [one for one in unknown if os.path.exists(_record(one).parent)]
    if unknown and not (force and changed == unknown):
        listed = "; ".join(f"{one}{' (changed since then)' * (one in changed)}" for one in unknown)
        raise Unapproved(
            f"{root} names what you have not used or approved here: {listed}. "
            f"Look at them, then approve them with --trust{' or --force' * (changed == unknown)}"
        )
    remember(config, say)


def remember(config: RunConfig, say: Callable[[str], None]) -> None:
    """Make known what `config` names. `say` gets a sentence if only this process can know it."""
    found = [one for one in named_by(config) if one.sha256 is not None]
    pending = [one for one in found if not _is_known(one)]
    try:
        for record in map(_record, pending):
            for folder in (record.parents[2], record.parents[1], record.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            record.write_text("")
    except OSError as error:
        _known.update(pending)
        say(
            f"{record.parents[1]} cannot be written to ({error.strerror}), so that this run's "
            "directory will ask for --trust; name another folder in XDG_STATE_HOME"
        )


def _is_known(named: Named) -> bool:
    return named.sha256 is not None and (named in _known or os.path.exists(_record(named)))


def _record(named: Named) -> Path:
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:  # a user without a home, as in some containers
        state = Path(os.devnull)
    name = hashlib.sha256(json.dumps([named.option, named.text, named.place]).encode()).hexdigest()
    return state / "mugrpo" / "trusted" / name / (named.sha256 or "none")
