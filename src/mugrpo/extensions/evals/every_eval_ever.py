"""A result in the form of Every Eval Ever, the shared schema of evaluation results, version 0.3.0.

The schema and its fields: https://github.com/evaleval/every_eval_ever (arXiv 2606.14516).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from mugrpo.tasks.rows import is_local

SCHEMA_VERSION = "0.3.0"
UNKNOWN = "unknown"

_LENGTH = "mean_length"  # the one measure that is no share
_OF_VERDICTS = re.compile(r"(avg|pass|maj|G-pass|mG-pass)@(\d+)(?:_([\d.]+))?")

# Kind of measure -> its description, for a problem with n responses. Averages are over problems.
_DESCRIPTIONS = {
    "avg": "share of right responses",
    "pass": "probability that at least one of k responses is right, by the unbiased estimator",
    "maj": "whether the answer that most of k responses give is right; ties count in proportion",
    "G-pass": "probability that at least k tau of k responses, and at least one, are right",
    "mG-pass": "mean of G-pass@k over tau between 1/2 and 1",
    "truncated": "share of responses that reached the limit on tokens",
    "no_answer": "share of responses in which the grader found no answer",
    _LENGTH: "tokens per response",
}
_WILSON = (
    "Wilson's interval with the effective number of responses (Korn and Graubard 1998) and the "
    "quantile of Student's t, over problems"
)
_STUDENT = "Student's t over problems"


def record(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of `result`, the content of a result.json, with a result per measure.

    Nothing in a result says who evaluated, or how they are related to the model's makers: the
    record has the organization "unknown" and the relationship "other". Whoever submits it to a
    collection replaces both. A checkpoint of a run is another model than the one that the run
    started from, so its updates are in its id. An interval or value that is null is left out.
    """
    ended = str(int(datetime.fromisoformat(result["ended"]).timestamp()))
    model = _model(result)
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"{result['suite']}/{model['id']}/{ended}",
        "evaluation_timestamp": ended,
        "retrieved_timestamp": ended,
        "source_metadata": {
            "source_name": "mugrpo",
            "source_type": "evaluation_run",
            "source_organization_name": UNKNOWN,
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": "mugrpo",
            "version": result["mugrpo"],
            "additional_details": _graders(result),
        },
        "model_info": model,
        "evaluation_results": [
            _measure(result, name, ended)
            for name, (value, _, _) in result["measures"].items()
            if value is not None
        ],
    }


def _model(result: Mapping[str, Any]) -> dict[str, Any]:
    name, updates = result["model"], result["update"]
    if Path(name).is_absolute():  # folders of this machine are nobody's business
        name = Path(name).name
    return {
        "name": f"{name} after {updates} updates" if updates else name,
        "id": f"{name}-update-{updates}" if updates else name,
        "inference_engine": {"name": result["engine"]},
        "additional_details": {
            "deployment_type": "self_deployed",
            "model_availability": UNKNOWN,
            "precision": result["precision"],
            "updates": str(updates),
        },
    }


def _graders(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the graders' names, and how often they agree with its interval, if known."""
    if not (agreement := result["agreement"]):
        return {}
    names = {"grader": agreement["first"], "second_grader": agreement["second"]}
    keys = ("graders_agree", "graders_agree_lower", "graders_agree_upper")
    share = map(str, agreement["share"] or [])  # with the ends of its 95 % interval
    return {**names, **dict(zip(keys, share, strict=False))}


def _measure(result: Mapping[str, Any], name: str, ended: str) -> dict[str, Any]:
    value, low, high = result["measures"][name]
    uncertainty: dict[str, Any] = {"num_samples": _problems(result, name)}
    if low is not None and high is not None:
        uncertainty["confidence_interval"] = {
            "lower": low,
            "upper": high,
            "confidence_level": 0.95,
            "method": _STUDENT if name == _LENGTH else _WILSON,
        }
    return {
        "evaluation_result_id": name,
        "evaluation_name": result["title"],
        "evaluation_timestamp": ended,
        "source_data": _source(result),
        "metric_config": _metric(name, result["max_new_tokens"]),
        "score_details": {"score": value, "uncertainty": uncertainty},
        "generation_config": {
            "generation_args": {
                "temperature": result["temperature"],
                "top_p": result["top_p"],
                "max_tokens": result["max_new_tokens"],
            },
            "additional_details": {
                "samples": str(result["samples"]),
                "seed": str(result["seed"]),
            },
        },
    }


def _problems(result: Mapping[str, Any], name: str) -> int:
    """Return the number of problems that the measure is a mean over: those with enough verdicts."""
    of_verdicts = _OF_VERDICTS.fullmatch(name)
    if of_verdicts is None:
        return len(result["per_problem"])
    if of_verdicts[1] == "maj":
        return sum(problem["majority"] is not None for problem in result["per_problem"])
    least = 1 if of_verdicts[1] == "avg" else int(of_verdicts[2])
    return sum(problem["judged"] >= least for problem in result["per_problem"])


def _source(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source of the problems: a data set on the hub, or a file without its folder."""
    data = result["data"]
    details = {"problems": str(result["problems"])}
    if is_local(data):
        return {
            "source_type": "other",
            "dataset_name": result["title"],
            "additional_details": {**details, "file": Path(data).name},
        }
    known = {name: result[name] for name in ("subset", "revision") if result[name] is not None}
    return {
        "source_type": "hf_dataset",
        "dataset_name": result["title"],
        "hf_repo": data,
        "hf_split": result["split"] or "train",
        "additional_details": {**details, **known},
    }


def _metric(name: str, limit: int) -> dict[str, Any]:
    """Return the description of a measure. `limit` is the length of the longest response."""
    of_verdicts = _OF_VERDICTS.fullmatch(name)
    kind = of_verdicts[1] if of_verdicts else name
    length = name == _LENGTH
    metric: dict[str, Any] = {
        "evaluation_description": _DESCRIPTIONS[kind],
        "metric_id": f"mugrpo.{name}",
        "metric_name": name,
        "metric_unit": "tokens" if length else "proportion",
        "score_type": "continuous",
        "min_score": 0,
        "max_score": limit if length else 1,
        "lower_is_better": kind in ("truncated", "no_answer"),
    }
    if of_verdicts:
        tau = {} if of_verdicts[3] is None else {"tau": float(of_verdicts[3])}
        metric["metric_parameters"] = {"k": int(of_verdicts[2]), **tau}
        metric["metric_kind"] = "accuracy" if kind in ("avg", "maj") else "pass_rate"
    if length:  # the schema wants a direction, and this measure has none
        metric["additional_details"] = {"polarity": "not_applicable"}
    return metric
