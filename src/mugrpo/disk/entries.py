"""The form of what a manifest says of a shard. Someone else may have written it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBER = int | float
_ALWAYS: dict[str, Any] = {"rows": int, "bytes": int, "sha256": str}
_OPTIONAL: dict[str, Any] = {  # what arithmetic is done with; the rest is only compared
    "tokens": int,
    "slots": int,
    "seconds": _NUMBER,
    "canary_gap": _NUMBER | None,
    "refresh_seconds": _NUMBER | None,
    "refresh_parts": dict | None,
    "statuses": dict,
    "reward_sum": _NUMBER,
    "rewarded": int,
    "groups": int | list,  # a number of scores, a list of a plan
    "zero_variance_groups": int,
    "groups_right": dict,
    "logged_sums": dict,
    "logged_counts": dict,
}


def well_formed(value: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return `value` as an entry of a manifest of `kind`. Raises KeyError or TypeError if not one.

    Shards of another program may lack what is optional, but only a run writes plans.
    """
    entry = dict(value)
    if kind == "plan" and not all(isinstance(n, int) and n > 0 for n in entry["groups"]):
        raise TypeError(f"groups is {entry['groups']!r:.50}")
    forms = _ALWAYS | {name: form for name, form in _OPTIONAL.items() if name in entry}
    for name, form in forms.items():
        if not isinstance(entry[name], form):
            raise TypeError(f"{name} is {entry[name]!r:.50}")
    for name, counts in entry.items():
        if isinstance(counts, dict) and not all(isinstance(n, _NUMBER) for n in counts.values()):
            raise TypeError(f"{name} are not numbers")
    counts = entry.get("logged_counts", {})
    if counts.keys() != entry.get("logged_sums", {}).keys() or min(counts.values(), default=1) < 1:
        raise TypeError(f"logged_counts is {counts!r:.50}")
    if entry["rows"] < 1:
        raise TypeError(f"rows is {entry['rows']}")
    return entry
