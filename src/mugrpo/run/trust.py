"""Whether this user has used or approved, on this machine, the code and commands of a config.

Approvals lie in the user's own folder: `mugrpo/trusted` in `$XDG_STATE_HOME`, by default in
~/.local/state. NAME/CONTENT is an approval, where NAME is a hash of an option and what it names,
and CONTENT one of the files behind it. docs/security.md says who is trusted with what.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.run.clones import last_arrival
from mugrpo.run.named import Named, named_by

_unwritten: set[Named] = set()  # used or approved in this process, but not remembered beyond it
_PACKAGE = Path(__file__).resolve().parents[1]  # whoever imports mugrpo trusts both of these
_CHECKOUT = _PACKAGE.parents[1]


@dataclass(frozen=True)
class Theirs:
    """A config that may be someone else's."""

    config: RunConfig  # without what this user adds to it
    source: str  # what an error message begins with
    changed: float = math.inf  # when others last changed what lies there; inf if nobody knows


def theirs_in(file: Path, config: RunConfig) -> Theirs | None:
    """Return the `config` of a file if the file is someone else's, or None if nothing says so.

    Nothing says so of a file that was copied or unpacked: whoever names it on the command line
    says yes, as with a script.
    """
    if _PACKAGE in file.resolve().parents:
        return None
    if file.stat().st_uid not in (0, os.geteuid()):
        return Theirs(config, f"{file} belongs to another user and")
    for folder in file.resolve().parents:
        if is_run(folder):
            return Theirs(config, f"{file} lies in the run {folder} and")
        if folder == _CHECKOUT:
            return None
        if (changed := last_arrival(folder)) is not None:
            return Theirs(config, f"{file} lies in the git clone {folder} and", changed)
    return None


def require_trusted(
    config: RunConfig,
    *theirs: Theirs | None,
    trust: bool,
    say: Callable[[str], None],
    force: bool = False,
) -> None:
    """Refuse what `theirs` name unless it was used or approved, and remember all of `config`.

    What `config` names beyond that is the user's own choice. `trust` approves everything. `force`
    accepts changed content of what was used or approved before. `say` gets a sentence if approvals
    cannot be written; only this process remembers them then. Raises UsageError, which lists what is
    refused.
    """
    named = named_by(config)
    for one in theirs:
        if one and not trust:
            _refuse_unknown(one, named, force)
    _remember(named, say)


def _refuse_unknown(theirs: Theirs, named: Sequence[Named], force: bool) -> None:
    """Raise UsageError if `theirs` names some of `named` that were neither used nor approved."""
    refused, changed = [], []
    for one in named_by(theirs.config):
        last_used = _last_used(one)
        if one not in named or _is_approved(one) or last_used > theirs.changed + 1:
            continue
        refused.append(f"{one} (changed since then)" if last_used else str(one))
        changed.append(last_used > 0)
    if refused and not (force and all(changed)):
        way_out = "--trust or --force" if all(changed) else "--trust"
        raise UsageError(
            f"{theirs.source} names code or commands that you have not used or approved here: "
            f"{'; '.join(refused)}. Look at them, then approve them with {way_out}"
        )


def _approval(named: Named) -> Path:
    name = hashlib.sha256(json.dumps([named.option, named.text]).encode()).hexdigest()
    return approvals_folder() / name / (named.sha256 or "none")


def _is_approved(named: Named) -> bool:
    return named in _unwritten or os.path.exists(_approval(named))


def _last_used(named: Named) -> float:
    """Return when something of this name was last used or approved, or 0 for never."""
    try:
        return max(approval.stat().st_mtime for approval in os.scandir(_approval(named).parent))
    except (OSError, ValueError):  # there are none, or this user can have none
        return 0.0


def _remember(named: Sequence[Named], say: Callable[[str], None]) -> None:
    """Write approvals of `named`, or say that they cannot be written."""
    pending = [one for one in named if one not in _unwritten]
    try:
        for one in pending:
            _approve(one)
    except OSError as error:
        _unwritten.update(pending)
        say(
            f"{approvals_folder()} cannot be written to ({error.strerror}), so that mugrpo cannot "
            f"remember that you use {'; '.join(map(str, pending))}; name another folder in the "
            "environment variable XDG_STATE_HOME"
        )


def _approve(named: Named) -> None:
    """Write an approval. Raises OSError if that is impossible."""
    approval = _approval(named)
    for folder in (approvals_folder().parent, approvals_folder(), approval.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    approval.write_text(f"{named}\n", errors="backslashreplace")


def approvals_folder() -> Path:
    """Return the folder of approvals, or one that cannot exist if this user has no home."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a name, as in some containers
        state = os.devnull
    return Path(state) / "mugrpo" / "trusted"


def is_run(folder: Path) -> bool:
    """Return whether `folder` is a run's directory."""
    try:
        return "provenance" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False
