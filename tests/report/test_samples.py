"""Sampled rollouts in the page: what colors tokens, the filters, and differences of stages."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mugrpo.report.samples import (
    Token,
    differences,
    facts,
    read_sample_file,
    said,
    scale,
    shade,
    stored_colorings,
)
from tests.report.parsed import Parsed, report
from tests.report.synthetic import answered, sample, write_config, write_samples


@pytest.mark.parametrize(
    ("coloring", "token", "expected"),
    [
        ("ratio", Token("a", 0.01, None), "b6"),  # 1/100 is below 1/20
        ("ratio", Token("a", 1 / 1.3, None), "b2"),
        ("ratio", Token("a", 1.04, None), ""),
        ("ratio", Token("a", 2.5, None), "a4"),
        ("ratio", Token("a", 0.0, None), "b6"),
        ("ratio", Token("a", None, 0.5), None),
        ("behavior", Token("a", None, 1.0), ""),
        ("behavior", Token("a", None, math.exp(-0.5)), "p3"),  # the bounds are 0.05, 0.2, 0.5, 1
        ("behavior", Token("a", None, math.exp(-1.99)), "p4"),
        ("behavior", Token("a", 2.0, None), None),
        ("entropy", Token("a", None, None, entropy=0.04), ""),
        ("entropy", Token("a", None, None, entropy=4.0), "e6"),
        ("entropy", Token("a", 2.0, 0.5), None),
    ],
)
def test_a_shade_follows_from_the_value_and_there_is_none_if_it_is_not_stored(
    coloring: str, token: Token, expected: str | None
):
    assert shade(token, coloring) == expected
    assert (coloring in stored_colorings([token])) == (expected is not None)


def test_what_an_environment_said_is_marked_and_has_no_probabilities():
    own, other = Token("a", 1.0, 0.5, ("clipped",), 0.1), Token("b", 1.0, 1.0, (), 0.0)
    assert said([own, other], [True, False]) == [own, Token("b", None, None, ("environment",))]
    assert said([own, other], None) == [own, other]


def test_a_scale_has_a_bound_between_any_two_shades():
    for coloring, count in (("ratio", 13), ("behavior", 7), ("entropy", 7)):
        shades, bounds = scale(coloring)
        assert len(shades) == len(bounds) + 1 == count and bounds == sorted(bounds)
    assert scale("ratio")[0][5:8] == ["b1", "", "a1"] and scale("ratio")[1][5:7] == [1 / 1.05, 1.05]


def test_differences_are_of_tokens_and_joined():
    """3+2 = 5 , 5-1 = 4 against 3+2 = 6 , 6-1 = 4: three tokens differ, in two places."""
    old = ["3+2", "=", "5", ",", "5", "-1", "=", "4"]
    new = ["3+2", "=", "6", ",", "6", "-1", "=", "4"]
    assert differences(old, new) == (
        [("3+2=", False), ("5", True), (",", False), ("5", True), ("-1=4", False)],
        [("3+2=", False), ("6", True), (",", False), ("6", True), ("-1=4", False)],
    )
    assert differences(["a", "b"], []) == ([("ab", True)], [])


def test_facts_are_said_in_order_and_what_is_not_known_is_a_dash():
    document = {"update": 1, "samples": [sample(["a", "b"], [0.5, 2.0])]}
    assert facts(read_sample_file(document).samples[0]) == [
        *("advantage +0.7", "right", "reward 1", "finished by stop", "ratios 0.5 to 2"),
    ]
    bare = sample([], [], advantage=None, status=None, reward=None)
    document = {"update": 1, "samples": [bare]}
    assert facts(read_sample_file(document).samples[0]) == [
        *("advantage \u2013", "not scored", "reward \u2013", "finished by stop", "no ratios"),
    ]


def elements(page: Parsed, tag: str) -> list[dict[str, str | None]]:
    return [attributes for name, attributes in page.elements if name == tag]


def test_a_choice_of_colorings_needs_no_script_and_names_what_is_not_stored(tmp_path: Path):
    write_config(tmp_path / "run")
    write_samples(tmp_path / "run", 1, [sample(["4"], [1.0])], stage=0)
    page = report(tmp_path / "run")
    radios = [one for one in elements(page, "input") if one["type"] == "radio"]
    assert [(one["value"], "checked" in one) for one in radios] == [
        *(("ratio", True), ("behavior", False)),
    ]
    assert "Not stored: entropy." in page.of("p")
    for name in ("ratio", "behavior", "entropy"):
        assert f".samples:has([value={name}]:checked) :is(.t, i) {{ background: var(--{name})" in (
            page.style
        )
    write_samples(tmp_path / "run", 1, [sample(["4"], [1.0], entropies=[0.25])], stage=0)
    page = report(tmp_path / "run")
    assert [one["value"] for one in elements(page, "input") if one["type"] == "radio"] == [
        *("ratio", "behavior", "entropy"),
    ]
    assert "Not stored: entropy." not in page.of("p")
    (token,) = [one for one in elements(page, "bdi") if "class" in one]
    assert token == {"class": "t p3 e2", "title": "ratio 1, β 0.5 to π 0.5, entropy 0.25"}


def test_filters_offer_what_occurs_and_are_hidden_until_the_script_runs(tmp_path: Path):
    write_config(tmp_path / "run")
    wrong = sample(["5"], [1.0], status="no_answer", reward=None)
    write_samples(tmp_path / "run", 4, [sample(["4"], [1.0]), wrong], stage=0)
    write_samples(tmp_path / "run", 8, [sample(["4"], [1.0], reward=0.25)], stage=1)
    page = report(tmp_path / "run")
    assert [one["name"] for one in elements(page, "select")] == ["stage", "status"]
    assert [one["value"] for one in elements(page, "option")] == [
        *("", "0", "1"),
        *("", "right", "no answer"),
    ]
    assert [(one["name"], one["type"]) for one in elements(page, "input")[:3]] == [
        *(("problem", "search"), ("low", "number"), ("high", "number")),
    ]
    assert [one for one in elements(page, "div") if "hidden" in one] == [
        {"class": "filters", "hidden": ""}
    ]
    assert [tuple(one.values()) for one in elements(page, "article")] == [
        *(("0", "right", "1.0"), ("0", "no answer", ""), ("1", "right", "0.25")),
    ]
    assert all("hidden" not in one for one in elements(page, "article"))
    assert ".samples > form" in page.script


def test_a_later_stages_response_is_compared_with_the_earlier_one_to_the_same_problem(
    tmp_path: Path,
):
    write_config(tmp_path / "run")
    of_stages = [(4, 0, ["1", "=", "7"]), (8, 1, ["1", "=", "8"]), (9, 1, ["1", "=", "8", "!"])]
    for number, stage, tokens in of_stages:
        write_samples(tmp_path / "run", number, [sample(tokens, [1.0] * len(tokens))], stage=stage)
    other = sample(["1"], [1.0], problem_id="train-13")
    write_samples(tmp_path / "run", 12, [other], stage=2)
    page = report(tmp_path / "run")
    title = "Differences from stage 0, update 4, which is on the left"
    assert page.of("summary").count(title) == 2  # of stage 1, at updates 8 and 9
    assert page.of("del") == ["7", "7"] and page.of("ins") == ["8", "8!"]


def test_an_evaluations_first_response_is_compared_with_that_of_the_one_before(tmp_path: Path):
    write_config(tmp_path / "run")
    for number, text in ((0, "it is 7"), (8, "it was 7")):
        entry = {"problem_id": "p1", "prompt": "3+4=", "group": [answered(text), answered("7")]}
        write_samples(tmp_path / "run", number, [entry], kind="evaluation")
    page = report(tmp_path / "run")
    assert page.of("del") == ["is"] and page.of("ins") == ["was"]
    assert any("the first response after update 0" in title for title in page.of("summary"))


def test_prompt_and_reference_are_beside_the_response(tmp_path: Path):
    write_config(tmp_path / "run")
    write_samples(tmp_path / "run", 1, [sample(["4"], [1.0], reference="four")], stage=0)
    page = report(tmp_path / "run")
    inside = page.source.partition('<div class="sides">')[2].partition("</article>")[0]
    assert inside.index('class="prompt"') < inside.index("four") < inside.index('class="response"')
    assert ".sides { display: grid; grid-template-columns:" in page.style
