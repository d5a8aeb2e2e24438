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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.run.named import Named, named_by

_CHECKOUT = Path(__file__).parents[3]  # whoever imports mugrpo from it trusts it


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
    if file.stat().st_uid not in (0, os.geteuid()):
        return Theirs(config, f"{file} belongs to another user and")
    for folder in file.resolve().parents:
        if _is_run(folder):
            return Theirs(config, f"{file} lies in the run {folder} and")
        log = folder / ".git" / "logs" / "HEAD"
        if folder == _CHECKOUT or not log.is_file():
            continue
        lines = log.read_text(errors="replace").splitlines()
        source = lines[0].partition("\tclone: from ")[2] if lines else ""
        if source:
            arrivals = [line for line in lines if "\tcommit" not in line]
            source = f"{file} lies in a clone of {source} and"
            return Theirs(config, source, _time(arrivals[-1]))
    return None


def require_trusted(
    config: RunConfig, theirs: Theirs | None, *, trust: bool, force: bool = False
) -> None:
    """Refuse what `theirs` names unless it was used or approved, and remember all of `config`.

    What `config` names beyond that is the user's own choice. `trust` approves everything. `force`
    accepts changed content of what was used or approved before. Raises UsageError, which lists what
    is refused, and if the approvals cannot be written.
    """
    named = named_by(config)
    if theirs and not trust:
        _refuse_unknown(theirs, named, force)
    for one in named:
        _approve(one)


def _refuse_unknown(theirs: Theirs, named: Sequence[Named], force: bool) -> None:
    """Raise UsageError if `theirs` names some of `named` that were neither used nor approved."""
    refused, changed = [], []
    for one in named_by(theirs.config):
        last_used = _last_used(one)
        if one not in named or _approval(one).exists() or last_used > theirs.changed + 1:
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
    return _folder() / name / (named.sha256 or "none")


def _last_used(named: Named) -> float:
    """Return when something of this name was last used or approved, or 0 for never."""
    times = [path.stat().st_mtime for path in _approval(named).parent.glob("*")]
    return max(times, default=0.0)


def _approve(named: Named) -> None:
    approval = _approval(named)
    try:
        for folder in (_folder().parent, _folder(), approval.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        approval.write_text(f"{named}\n", errors="backslashreplace")
    except OSError as error:
        raise UsageError(
            f"{_folder()} cannot be written to ({error.strerror}), so that mugrpo cannot remember "
            f"that you use {named}; name another folder in the environment variable XDG_STATE_HOME"
        ) from None


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mugrpo" / "trusted"


def _is_run(folder: Path) -> bool:
    try:
        return "provenance" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _time(line: str) -> float:
    """Return the time of a line of git's log, or infinity if it has none."""
    try:
        return float(line.partition("\t")[0].split()[-2])
    except (IndexError, ValueError):
        return math.inf
