"""The values of rows that other programs have saved, checked one by one.

Each check returns a value in the form of `foreign.Row`, or raises ValueError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from mugrpo.disk.records import Status
from mugrpo.tasks.cells import number_text

_LEAST = -1e38  # of a float32


def _text(value: Any) -> str:
    """Return a response. TRL's are conversations with one turn if the prompt is one."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("content")
    if not isinstance(value, str):
        raise ValueError("its response is neither text nor one turn of the assistant")
    value.encode()  # raises ValueError for half a surrogate pair, which no tokenizer reads
    return value


def _answer(value: Any) -> str:
    """Return a reference answer as text, or "" if there is none."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"its answer is {value}; it must be text or a finite number")
    text = value if isinstance(value, str) else number_text(value) or json.dumps(value)
    text.encode()
    return text if text.strip() else ""


def _identity(value: Any) -> str:
    text = str(value)
    text.encode()
    if not text.strip():
        raise ValueError("its problem_id is blank")
    return text


def number(value: Any) -> float:
    found = math.nan if isinstance(value, bool) else float(value)
    if not math.isfinite(found):
        raise ValueError(f"its reward or temperature is {value!r}; it must be a finite number")
    return found


def _list(value: Any, kind: type | tuple[type, ...], name: str) -> list[Any]:
    values = json.loads(value) if isinstance(value, str) else value
    if not isinstance(values, list) or not values:
        raise ValueError(
            f"its {name} are {str(value)!r:.40}; they must be a list that is not empty"
        )
    if not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
        raise ValueError(f"its {name} are not all numbers of the right kind")
    return values


def _ids(value: Any) -> list[int]:
    ids = _list(value, int, "ids")
    if bad := [one for one in ids if abs(one) >= 2**31]:
        raise ValueError(f"its ids have {bad[0]!s:.40}, which is above 2^31")
    return ids


def _logprobs(value: Any) -> list[float]:
    values = _list(value, (int, float), "logprobs")
    if bad := [v for v in values if not _LEAST < v <= 0]:
        raise ValueError(
            f"it has the logprob {bad[0]}; a logprob is the natural logarithm of a probability: "
            "finite and not above 0"
        )
    return values


def _mask(value: Any) -> list[bool]:
    if not all(one in (0, 1) for one in value):
        raise ValueError("its loss_mask is not a list of true and false")
    return [bool(one) for one in value]


def _parts(value: Any) -> dict[str, Any]:
    parts = json.loads(value if isinstance(value, str) else json.dumps(value))
    if not isinstance(parts, dict):
        raise ValueError(f"its parts are {value!r:.40}, which is no JSON object")
    return parts


def _whole(bits: int) -> Callable[[Any], int]:
    """Return a check for whole numbers from 0 that have so many bits."""

    def whole(value: Any) -> int:
        found = int(value)
        if not 0 <= found < 2**bits or (isinstance(value, float) and found != value):
            raise ValueError(
                f"its seed or policy_step is {value!r}, not a whole number in 0 to 2^{bits} - 1"
            )
        return found

    return whole


CHECKS: dict[str, Callable[[Any], Any]] = {
    "prompt": lambda value: value,
    "response": _text,
    "reward": number,
    "answer": _answer,
    "problem_id": _identity,
    "prompt_ids": _ids,
    "response_ids": _ids,
    "logprobs": _logprobs,
    "finish_reason": str,
    "temperature": number,
    "status": lambda value: Status(value).value,
    "parts": _parts,
    "seed": _whole(64),
    "policy_step": _whole(63),
    "sample": str,
    "loss_mask": _mask,
    "turns": _ids,
    "environment": lambda value: json.dumps(_parts(value)),
}
