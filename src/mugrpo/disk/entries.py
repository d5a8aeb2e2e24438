"""The form of what a manifest says of a shard. Someone else may have written it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBER = int | float
_ALWAYS: dict[str, Any] = {"rows": int, "bytes": int, "sha256": str}
_OF_KIND: dict[str, dict[str, Any]] = {
    "scores": {
        "rollouts_sha256": str,
        "statuses": dict,
        "reward_sum": _NUMBER,
        "rewarded": int,
        "groups": int,
        "zero_variance_groups": int,
        "seconds": _NUMBER,
    },
    "plan": {"groups": list},
}
_OPTIONAL: dict[str, Any] = {
    "tokens": int,
    "slots": int,
    "seconds": _NUMBER,
    "canary_gap": _NUMBER | None,
    "refresh_seconds": _NUMBER | None,
    "refresh_parts": dict | None,
    "groups_right": dict,
    "judge": str,
    "rests_on": list | None,
    "policy_step": int,
}


def well_formed(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` as an entry of a manifest of this `kind`.

    Raises KeyError, TypeError or ValueError if it is none.
    """
    entry = dict(value)
    required = _ALWAYS | _OF_KIND.get(kind, {})
    forms = required | {name: form for name, form in _OPTIONAL.items() if name in entry}
    for name, form in forms.items():
        if not isinstance(entry[name], form):
            raise TypeError(f"{name} is {entry[name]!r:.50}")
    for name, counts in entry.items():
        if isinstance(counts, dict) and not all(isinstance(n, _NUMBER) for n in counts.values()):
            raise TypeError(f"{name} are not numbers")
    if entry["rows"] < 1:
        raise TypeError(f"rows is {entry['rows']}")
    return entry
