"""Records of Every Eval Ever, by hand and under its schema, which is in this folder (MIT)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from mugrpo.extensions.evals.every_eval_ever import SCHEMA_VERSION, record

SCHEMA = json.loads((Path(__file__).parent / "every_eval_ever.schema.json").read_text())


def problem(**changes: Any) -> dict[str, Any]:
    counts = {"right": 1, "judged": 4, "samples": 4, "majority": 0.5}
    more = {"truncated": 0, "no_answer": 1, "tokens": 354}
    return {"id": "gsm8k-test-0", **counts, **more, **changes}


def result(**changes: Any) -> dict[str, Any]:
    """Return a result.json with three problems: one has three verdicts, and one has none."""
    return {
        "suite": "gsm8k",
        "title": "GSM8K",
        "update": 0,
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "data": "openai/gsm8k",
        "subset": "main",
        "split": "test",
        "revision": "740312a",
        "engine": "continuous",
        "precision": "fp32",
        "samples": 4,
        "temperature": 0.6,
        "top_p": 0.95,
        "max_new_tokens": 256,
        "seed": 7,
        "problems": 3,
        "responses": 12,
        "seconds": 123.4,
        "measures": {
            "avg@4": [0.125, 0.0625, 0.25],
            "pass@4": [0.5, 0.25, 0.75],
            "maj@4": [0.25, 0.125, 0.5],
            "G-pass@2_0.75": [0.0, 0.0, 0.5],
            "mG-pass@2": [0.0, 0.0, 0.5],
            "truncated": [0.25, 0.0, 0.5],
            "no_answer": [0.0, None, None],
            "mean_length": [88.5, 80.0, 97.0],
        },
        "statuses": {"right": 1, "wrong": 6, "error": 5},
        "agreement": None,
        "per_problem": [
            problem(),
            problem(id="gsm8k-test-1", right=0, judged=3, majority=0.0),
            problem(id="gsm8k-test-2", right=0, judged=0, majority=None),
        ],
        "mugrpo": "0.1.0",
        "ended": "2026-11-24T09:00:00+00:00",
        **changes,
    }


def faults(made: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(made)]


AGREEMENT = {"first": "math", "second": "plain", "share": [0.9975, 0.99, 1.0]}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"update": 64, "model": "smollm2"},
        {"data": "shared/gsm8k.jsonl", "subset": None, "split": None, "revision": None},
        {"data": "my/own", "subset": None, "split": None, "revision": None},
        {"agreement": AGREEMENT},
        {"agreement": {**AGREEMENT, "share": None}},
    ],
)
def test_records_have_the_form_of_the_schema(changes):
    made = record(result(**changes))
    assert faults(made) == []
    assert faults(json.loads(json.dumps(made))) == []
    assert made["schema_version"] == SCHEMA_VERSION == SCHEMA["version"]


def test_the_schema_finds_a_fault():
    made = record(result())
    del made["evaluation_results"][0]["metric_config"]["max_score"]
    made["model_info"]["additional_details"]["updates"] = 0
    assert len(faults(made)) == 2


def by_name(made: dict[str, Any]) -> dict[str, Any]:
    return {each["evaluation_result_id"]: each for each in made["evaluation_results"]}


def test_a_measure_keeps_its_value_interval_and_sampling():
    average = by_name(record(result()))["avg@4"]
    uncertainty = average["score_details"].pop("uncertainty")
    assert average["score_details"] == {"score": 0.125}
    method = uncertainty["confidence_interval"].pop("method")
    assert method.startswith("Wilson's interval")
    assert uncertainty["confidence_interval"] == {
        "lower": 0.0625,
        "upper": 0.25,
        "confidence_level": 0.95,
    }
    assert average["evaluation_name"] == "GSM8K"
    assert average["generation_config"]["generation_args"] == {
        "temperature": 0.6,
        "top_p": 0.95,
        "max_tokens": 256,
    }
    assert average["generation_config"]["additional_details"] == {"samples": "4", "seed": "7"}


def test_the_number_of_problems_is_that_of_the_problems_with_enough_verdicts():
    """Four verdicts, three and none: pass@4 is of one problem, G-pass@2 and avg@4 of two."""
    found = by_name(record(result()))
    counts = {name: found[name]["score_details"]["uncertainty"]["num_samples"] for name in found}
    assert counts == {
        "avg@4": 2,
        "pass@4": 1,
        "maj@4": 2,
        "G-pass@2_0.75": 2,
        "mG-pass@2": 2,
        "truncated": 3,
        "no_answer": 3,
        "mean_length": 3,
    }


def test_bounds_directions_and_parameters():
    metrics = {name: each["metric_config"] for name, each in by_name(record(result())).items()}
    assert {name for name in metrics if metrics[name]["lower_is_better"]} == {
        "truncated",
        "no_answer",
    }
    bounds = {name: (metrics[name]["min_score"], metrics[name]["max_score"]) for name in metrics}
    assert bounds.pop("mean_length") == (0, 256)
    assert set(bounds.values()) == {(0, 1)}
    assert metrics["pass@4"]["metric_parameters"] == {"k": 4}
    assert metrics["G-pass@2_0.75"]["metric_parameters"] == {"k": 2, "tau": 0.75}
    assert "metric_parameters" not in metrics["truncated"]
    assert metrics["mean_length"]["additional_details"] == {"polarity": "not_applicable"}


def test_what_is_not_known_is_left_out():
    measures = {"avg@4": [None, None, None], "no_answer": [0.0, None, None]}
    found = by_name(record(result(measures=measures)))
    assert list(found) == ["no_answer"]
    assert "confidence_interval" not in found["no_answer"]["score_details"]["uncertainty"]


def test_a_checkpoint_is_another_model_than_the_one_that_its_run_started_from():
    """2026-11-24 09:00 UTC is 1795510800 seconds after 1970."""
    start, later = record(result(model="a/b")), record(result(model="a/b", update=64))
    assert start["model_info"]["id"] == "a/b" and later["model_info"]["id"] == "a/b-update-64"
    assert later["evaluation_id"] == "gsm8k/a/b-update-64/1795510800"
    assert start["retrieved_timestamp"] == "1795510800"


def test_a_model_on_this_machine_is_named_without_its_folders():
    made = record(result(model="/home/me/models/mine", update=3))
    assert made["model_info"]["id"] == "mine-update-3"
    assert made["model_info"]["name"] == "mine after 3 updates"
    assert "home" not in json.dumps(made)


def test_a_data_set_is_named_with_its_revision_and_a_file_without_its_folder():
    (hub, *_), (file, *_) = (
        record(result(**changes))["evaluation_results"]
        for changes in ({}, {"data": "/home/me/gsm8k.jsonl", "revision": None})
    )
    assert hub["source_data"] == {
        "source_type": "hf_dataset",
        "dataset_name": "GSM8K",
        "hf_repo": "openai/gsm8k",
        "hf_split": "test",
        "additional_details": {"problems": "3", "subset": "main", "revision": "740312a"},
    }
    assert file["source_data"] == {
        "source_type": "other",
        "dataset_name": "GSM8K",
        "additional_details": {"problems": "3", "file": "gsm8k.jsonl"},
    }


def test_the_graders_and_their_agreement_are_named():
    details = record(result(agreement=AGREEMENT))["eval_library"]["additional_details"]
    names = {"grader": "math", "second_grader": "plain"}
    ends = {"graders_agree_lower": "0.99", "graders_agree_upper": "1.0"}
    assert details == {**names, "graders_agree": "0.9975", **ends}
    unknown = record(result(agreement={**AGREEMENT, "share": None}))["eval_library"]
    assert unknown["additional_details"] == names
    assert record(result())["eval_library"]["additional_details"] == {}
