"""Sampled rollouts in the page: what colors tokens, references, whole groups, evaluations."""

import math
from pathlib import Path

import pytest

from mugrpo.report.samples import Token, facts, said, shade, tokens_of
from tests.cases import table
from tests.report.parsed import report
from tests.report.synthetic import (
    answered,
    evaluation,
    refresh,
    sample,
    update,
    write_config,
    write_metrics,
    write_samples,
)


@table(
    ("logprob", "ratio", "expected"),
    [
        *((0.0, 0.01, "b6"), (0.0, 1 / 1.3, "b2"), (0.0, 1.04, ""), (0.0, 2.5, "a4")),
        (0.0, 1e-300, "b6"),
        *((0.0, None, ""), (-0.5, None, "p3"), (-1.99, None, "p4")),  # bounds 0.05, 0.2, 0.5, 1
    ],
)
def test_a_shade_says_how_far_the_ratio_is_from_one_or_how_unlikely_the_token_was(
    logprob: float, ratio: float | None, expected: str
):
    assert shade(Token("a", logprob, ratio and math.log(ratio))) == expected


def test_a_token_has_its_ratio_and_marks_and_an_environments_no_probability():
    marks = {"clipped": [1], "vetoed": [1, 2]}
    entry = sample(["a", "b", "c"], [1.0, 4.0, 0.5], marks=marks)
    tokens = tokens_of({**entry, "entropies": [0.5, math.nan, None]})
    assert [token.ratio for token in tokens] == pytest.approx([1.0, 4.0, 0.5])
    assert [token.marks for token in tokens] == [(), ("clipped", "vetoed"), ("vetoed",)]
    assert [token.entropy for token in tokens] == [0.5, None, None]
    own, other = Token("a", -1.0, -0.5, 0.1, ("clipped",)), Token("b", 0.0)
    assert said([own, other], [True, False]) == [own, Token("b", None, marks=("environment",))]
    assert said([own, other], None) == [own, other]


def test_facts_are_said_in_order_and_what_is_not_known_is_a_dash():
    entry = sample(["a", "b"], [0.5, 2.0])
    assert facts(entry, tokens_of(entry)) == [
        *("advantage +0.7", "right", "reward 1", "finished by stop", "ratios 0.5 to 2")
    ]
    assert facts(sample([], [], advantage=None, status="no_answer", reward=None), []) == [
        *("advantage \u2013", "no answer", "reward \u2013", "finished by stop", "no ratios")
    ]


def test_tokens_carry_their_ratio_and_their_marks(tmp_path: Path):
    root = tmp_path / "run"
    write_config(root)
    tokens = ["far", "below", "one", "above"]
    marks = {"clipped": [3], "vetoed": [1, 2], "mine": [2]}
    write_samples(root, 9, [sample(tokens, [0.01, 0.7, 1.0, 1.5], advantage=-0.7, marks=marks)])
    page = report(root)
    bdis = zip([e for e in page.elements if e[0] == "bdi"][1:], page.of("bdi")[1:], strict=True)
    shown = {text: attributes for (_, attributes), text in bdis}
    assert {text: attributes["class"] for text, attributes in shown.items()} == {
        "far": "t b6",
        "below": "t b2 mark-vetoed",
        "one": "t mark-vetoed mark-other",
        "above": "t a2 mark-clipped",
    }
    assert shown["above"]["title"] == "ratio 1.5, β 0.5 to π 0.75, entropy 0.5, clipped"
    assert page.of("b") == ["Update 9"]
    assert page.count("span", "negative") == 1 and "advantage \u22120.7" in page.text


def test_a_sample_has_its_reference_and_its_whole_group(tmp_path: Path):
    write_config(tmp_path / "run")
    write_metrics(tmp_path / "run", [refresh(0, 0), update(1)])
    others = [answered("it is 7", advantage=0.5), answered("8", status="wrong", reward=0.0)]
    whole = sample(["7"], [1.0], reference="seven", group=others)
    write_samples(tmp_path / "run", 1, [whole, sample(["6"], [1.0])])
    page = report(tmp_path / "run")
    assert "seven" in page.of("bdi") and page.of("p").count("reference: ") == 1
    assert "The whole group: 2 responses, 1 right" in page.of("summary")
    assert {"it is 7", "8"} <= set(page.of("bdi"))
    assert "right, reward 1, advantage 0.5" in page.of("span")
    assert "wrong, reward 0" in page.of("span")


def test_evaluations_show_all_responses_to_a_problem_with_what_was_logged(tmp_path: Path):
    write_config(tmp_path / "run")
    write_metrics(tmp_path / "run", [evaluation(0, 0.5), evaluation(8, 1.0)])
    for number in (0, 8):
        group = [answered(f"answer {number}", parts={"short": 0.25, "extra/words": 2.0})]
        entry = {"problem_id": "p1", "prompt": "3+4=", "reference": "7", "group": group}
        write_samples(tmp_path / "run", number, [entry], kind="evaluation")
    page = report(tmp_path / "run")
    assert "Held-out problems" in page.of("h2")
    assert {"3+4=", "7", "answer 0", "answer 8"} <= set(page.of("bdi"))
    assert '{"short": 0.25, "extra/words": 2.0}' in page.of("span")


def test_long_responses_and_prompts_are_cut_with_a_note(tmp_path: Path):
    root = tmp_path / "run"
    write_config(root)
    long = sample(["a "] * 50_000, [1.5] * 50_000, prompt="p" * 100_000)
    write_samples(root, 1, [long, sample(["b" * 100_000], [1.0])])
    page = report(root)
    assert "response cut: 400 of 50,000 tokens shown" in page.text
    assert "prompt cut: 1,500 of 100,000 characters shown" in page.text
    assert len(page.source) - len(page.script) < 200_000
