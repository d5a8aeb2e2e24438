"""The page as a whole: its numbers, its safety, its size, and several runs in one."""

import base64
import errno
import hashlib
import os
import signal
import webbrowser
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from threading import Timer

import pytest

import mugrpo.report
from mugrpo.cli import main
from mugrpo.disk.errors import UsageError
from mugrpo.report import write_report
from mugrpo.report.card import write_card
from mugrpo.report.page import page as made_page
from mugrpo.report.read import read_runs
from mugrpo.report.readable import with_signs
from tests.cases import table
from tests.faults.harm import contents
from tests.report.parsed import Parsed, layer, report
from tests.report.synthetic import (
    HOSTILE,
    answered,
    evaluation,
    long_run,
    refresh,
    sample,
    timed_run,
    update,
    write_config,
    write_metrics,
    write_samples,
)


def test_the_numbers_are_those_worked_out_by_hand(tmp_path):
    timed_run(tmp_path / "run")
    page = report(tmp_path / "run")
    rows = page.rows()
    expected = {
        **{"accuracy before": "0.250", "accuracy after": "0.750", "refreshes made": "2"},
        **{"updates made": "8", "updates planned": "8", "updates skipped": "1"},
        **{"rollouts": "1,024", "response tokens": "40,960"},
        "training time, evaluation apart": "50.0 s",  # 2 x (2 + 10 + 1) + 8 x 3
        **{"refresh": "4.0 s", "generate": "20.0 s", "score": "2.0 s"},
        **{"optimize": "24.0 s", "checkpoint": "0 s", "evaluate": "10.0 s"},
        **{"model.path": "chain", "preset": "mu-grpo", "reduction": "token_mean", "seed": "7"},
        **{"objective.name": "grpo", "objective.ratio_clip": "[0.0, 5.0]"},
        **{"veto.name": "negative_advantage", "veto.threshold": "0.01"},
        **{"schedule.stages": "2", "torch": "2.13.0"},
    }
    assert {name: rows[name] for name in expected} == {k: [v] for k, v in expected.items()}
    assert page.of("h1") == ["run"] and "before and after update 8, 512" in page.text


def test_the_policy_allows_one_style_and_script_alone_and_the_config_is_not_printed(tmp_path):
    write_config(tmp_path / "run")
    page = report(tmp_path / "run")
    (policy,) = [
        attributes["content"]
        for tag, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    style, script = (
        base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        for source in (page.style, page.script)
    )
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
        "base-uri 'none'; form-action 'none'"
    )
    tags = [tag for tag, _ in page.elements]
    assert tags.count("style") == 1 and tags.index("meta") < tags.index("style")
    script = page.script
    assert script.startswith("/*!") and "University of Washington Interactive Data Lab" in script
    assert "ast:true" in script  # Vega's interpreter, instead of its compiler
    (fold,) = [a for tag, a in page.elements if tag == "details" and a.get("class") == "fold"]
    printed = page.style.partition("@media print")[2]
    assert "open" not in fold and ".fold { display: none; }" in printed


def hostile_run(root) -> None:
    """Write a run with hostile text wherever a model, data, config or metrics key can put it."""
    document = {
        "config": {
            "model": {"path": HOSTILE, HOSTILE: HOSTILE},
            "objective": {"name": HOSTILE, "ratio_clip": [HOSTILE]},
            "schedule": {},
            "rollouts": {"max_new_tokens": 8},
        },
        "provenance": {"mugrpo": HOSTILE, "torch": {"a": HOSTILE}},
    }
    write_config(root, document=document)
    lines = [
        refresh(0, 0, **{f"status/{HOSTILE}": 3}),
        {"kind": HOSTILE, "update": 0, HOSTILE: 1},
        {"kind": HOSTILE, "update": 0, HOSTILE: HOSTILE},
        update(1, **{f"{HOSTILE}_fraction": 0.5}),
        update(2, **{f"{HOSTILE}_fraction": 0.25}),
        evaluation(2, 0.5, **{f"status/{HOSTILE}": 4}),
    ]
    write_metrics(root, lines)
    names = ("problem_id", "prompt", "status", "finish_reason", "reference")
    texts = {
        **dict.fromkeys(names, HOSTILE),
        "marks": {HOSTILE: [0], "vetoed": [1]},
        "group": [answered(HOSTILE, parts={HOSTILE: HOSTILE})],
    }
    write_samples(root, 1, [sample([HOSTILE, "x" * 100_000, "\n"], [0.5, 2.0, 1.0], **texts)])
    write_samples(root, 2, [texts], kind="evaluation")


def test_hostile_text_stays_text_everywhere(tmp_path):
    root = tmp_path / "<img src=x onerror=alert(1)>\"'&\u202e]]>"
    hostile_run(root)
    write_config(tmp_path / "plain")
    for page in (report(root), report(root, tmp_path / "plain")):
        assert page.text.count(with_signs(HOSTILE)) >= 8
        titles = [value for _, attributes in page.elements if (value := attributes.get("title"))]
        assert any(with_signs(HOSTILE)[:60] in title for title in titles)
        assert with_signs(root.name) in page.text
    (root / "metrics.jsonl").write_text('"</ul><script>"\n')  # a note is about the broken file
    assert any("line 1 is not a metrics line" in note for note in report(root).of("li"))


def test_several_runs_share_charts_with_a_legend(tmp_path):
    timed_run(tmp_path / "a" / "run")
    timed_run(tmp_path / "b" / "run", refresh_seconds=1.0)
    write_config(tmp_path / "b" / "run", group_size=16)
    page = report(tmp_path / "a" / "run", tmp_path / "b" / "run")
    rows = page.rows()
    assert rows["training time, evaluation apart"] == ["50.0 s", "48.0 s"]
    assert rows["schedule.group_size"] == ["8", "16"]
    assert page.count("tr", "differs") == 1
    assert page.of("text").count("a/run") == page.of("text").count("b/run") > 3  # legends
    assert page.of("h1") == ["2 runs compared"]
    charts = page.charts()
    for name in ("Accuracy against updates", "Entropy", "Behavior reward"):
        drawn = layer(charts[name], "lines")
        assert [row["label"] for row in drawn] == ["b/run", "a/run"]  # the first on top


def test_what_differs_between_two_runs_comes_first(tmp_path):
    """Problems p and q, 0 and 1 before, 1 and 1 after: +0.5, with 12.7 x .707 / sqrt 2 around."""
    for name in ("a", "b"):
        timed_run(tmp_path / name, refresh_seconds=1.0 if name == "b" else 2.0)
        write_config(tmp_path / name, group_size=16 if name == "b" else 8)
    first, second = read_runs([tmp_path / "a", tmp_path / "b"])
    first = replace(first, shares={"p": 0.0, "q": 1.0, "r": 0.0})
    second = replace(second, shares={"p": 1.0, "q": 1.0})
    (tmp_path / "both.html").write_text(made_page([first, second]))
    page = Parsed(tmp_path / "both.html")
    assert "b ends +0.500 in accuracy from a (95 % interval -5.853 to +6.853), over the same 2" in (
        page.text
    )
    assert "0.96 times its seconds" in page.text  # 48 of 50
    options = [name for name in page.rows() if "." in name]
    assert options[0] == "schedule.group_size"


def test_a_run_that_nobody_goes_on_with_says_so_first_then_a_collapse(tmp_path):
    write_config(tmp_path / "run")
    lines = [update(1, **{"ratio/negative/max": 200.0}), evaluation(1, 0.8), evaluation(2, 0.1)]
    write_metrics(tmp_path / "run", lines)
    (run,) = read_runs([tmp_path / "run"])
    assert "a collapse: accuracy fell from" in run.notes[0]
    assert run.notes[1].startswith("this run stopped after 2 of 8 updates; `mugrpo train ")


def test_a_report_replaces_an_older_one_and_no_other_file(tmp_path):
    timed_run(tmp_path / "run")
    out, data = tmp_path / "page.html", tmp_path / "data.jsonl"
    for _ in range(2):
        write_report([tmp_path / "run"], out)
    data.write_text('{"prompt": "1+1="}\n')
    with pytest.raises(UsageError, match=r"data\.jsonl is another file; name another with"):
        write_report([tmp_path / "run"], data)
    assert data.read_text() == '{"prompt": "1+1="}\n'


def test_the_first_stage_that_teaches_little_is_named(tmp_path):
    write_config(tmp_path / "run", batches_per_stage=1)
    truncated = refresh(0, 0, truncated_share=0.5, zero_variance_share=0.0)
    equal = refresh(1, 1, truncated_share=0.0, zero_variance_share=1.0)
    for lines, begin in (
        ([truncated, update(1), equal], "stage 0: 50% of the responses are truncated: raise "),
        ([refresh(0, 0), update(1), equal], "stage 1: in 100% of the groups all rewards are equal"),
    ):
        write_metrics(tmp_path / "run", lines)
        (run,) = read_runs([tmp_path / "run"])
        (note,) = [note for note in run.notes if note.startswith("stage ")]
        assert note.startswith(begin)


def test_a_share_of_each_problem_is_what_its_accuracy_is_the_mean_of(reference: Path):
    (run,) = read_runs([reference])
    last = run.evaluations[-1]
    assert len(run.shares) == last["problems"]
    assert fmean(run.shares.values()) == pytest.approx(last["accuracy"])


def test_a_report_can_be_opened_at_once(tmp_path, command, monkeypatch):
    write_config(tmp_path / "run")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert command("report", tmp_path / "run", "--open").status == 0
    assert opened == [(tmp_path / "run" / "report.html").as_uri()]


def test_a_report_is_written_into_its_run_or_for_several_runs_here(tmp_path, monkeypatch):
    write_config(tmp_path / "a")
    write_config(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    assert write_report([tmp_path / "a"]) == tmp_path / "a/report.html"
    assert write_report([tmp_path / "a", tmp_path / "b"]).absolute() == tmp_path / "report.html"
    assert (tmp_path / "report.html").exists() and not list(tmp_path.rglob("*.tmp.*"))


@table("written", [lambda run: write_report([run]), lambda run: write_card(run, None)])
def test_where_nothing_can_be_written_another_place_is_asked_for(tmp_path, monkeypatch, written):
    """As beside a run on a file system that is mounted for reading."""
    long_run(tmp_path / "run", stages=1, per_stage=2)
    before = contents(tmp_path / "run")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("mugrpo.report.publish_file", refuse)
    with pytest.raises(UsageError, match=r"Read-only file system.*with --out"):
        written(tmp_path / "run")
    assert contents(tmp_path / "run") == before


@pytest.mark.long
@pytest.mark.parametrize(("stages", "per_stage"), [(4, 1024), (1024, 4)])
def test_4096_updates_make_a_file_of_reasonable_size(tmp_path, stages, per_stage):
    long_run(tmp_path / "run", stages=stages, per_stage=per_stage)
    page = report(tmp_path / "run")
    assert len(page.source.encode()) < 3_000_000
    assert len(page.source.encode()) - len(page.script.encode()) < 1_500_000
    every = [r for c in page.charts().values() for rows in c["datasets"].values() for r in rows]
    assert max(len(row["x"]) for row in every if "y" in row and isinstance(row["y"], list)) <= 320


def test_an_updates_numbers_are_those_of_its_line_and_gaps_stay_gaps(tmp_path):
    write_config(tmp_path / "run")
    values = [0.5, 0.25, None, 0.123456, None]
    lines = [update(n, entropy=v, lr=n * 1e-4) for n, v in enumerate(values, 1)]
    write_metrics(tmp_path / "run", [refresh(0, 0), *lines])
    charts = report(tmp_path / "run").charts()
    (entropy,), (rate,) = layer(charts["Entropy"], "lines"), layer(charts["Learning rate"], "lines")
    assert entropy["x"] == [1, 2, 3, 4, 5] and entropy["y"] == [0.5, 0.25, None, 0.12346, None]
    assert rate["y"] == [1e-4, 2e-4, 3e-4, 4e-4, 5e-4]
    assert layer(charts["Entropy"], "refreshes_0") == [{"x": 0}]


def test_without_a_script_every_chart_is_a_picture_and_the_bytes_are_the_same(tmp_path):
    long_run(tmp_path / "run", stages=2, per_stage=8)
    page = report(tmp_path / "run")
    tags = [tag for tag, _ in page.elements]
    assert tags.count("svg") == len(page.data) > 10
    assert {"p50", "updates", "vetoed"} <= set(page.of("text"))
    first = write_report([tmp_path / "run"], tmp_path / "1.html").read_bytes()
    assert write_report([tmp_path / "run"], tmp_path / "2.html").read_bytes() == first


def test_intervals_of_accuracy_are_printed_and_drawn_if_they_are_known(tmp_path):
    write_config(tmp_path / "run")
    ends = [
        {"accuracy_low": 0.2, "accuracy_high": 0.4},
        {"accuracy_low": 0.6, "accuracy_high": 0.9},
    ]
    made = [update(n) for n in range(1, 9)]
    both = [evaluation(0, 0.25, **ends[0]), *made, evaluation(8, 0.75, **ends[1])]
    write_metrics(tmp_path / "run", both)
    page = report(tmp_path / "run")
    assert page.rows()["accuracy after"] == ["0.750 (0.600 to 0.900)"]
    assert "95 % interval (0.600 to 0.900)" in page.text
    for chart in ("Accuracy against updates", "Accuracy against wall-clock"):
        (band,) = layer(page.charts()[chart], "bands")
        assert (band["y"], band["y2"]) == ([0.2, 0.6], [0.4, 0.9])
    write_metrics(tmp_path / "run", [evaluation(0, 0.25), *made, evaluation(8, 0.75)])
    old = report(tmp_path / "run")
    assert "95 % interval" not in old.text and old.rows()["accuracy after"] == ["0.750"]


def test_a_page_that_is_written_again_is_loaded_again_until_ctrl_c(tmp_path: Path):
    root = tmp_path / "run"
    write_config(root)
    Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    seen: list[bool] = []

    def written(targets: list[Path], out: Path | None, every: int | None, *_: object) -> Path:
        page = write_report(targets, out, every)
        seen.append('<meta http-equiv="refresh" content="1">' in page.read_text())
        return page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mugrpo.report, "write_report", written)
        assert main(["report", str(root), "--every", "1"]) == 0
    assert seen == [True, False]


def test_an_unfinished_run_has_a_report(tmp_path: Path):
    root = tmp_path / "run"
    write_config(root)
    for lines in ([], [evaluation(0, None)], [refresh(0, 0), update(1, entropy=None)]):
        write_metrics(root, lines, torn='{"kind": "update", "upda')
        page = report(root)
        assert page.rows()["updates made"] == [str(int(len(lines) > 1))]
        assert "of 8 planned" in page.text


def test_rewards_share_a_chart_and_what_functions_log_has_its_own(tmp_path: Path):
    for name in ("a", "b"):
        write_config(tmp_path / name)
        first = {"rewards/short/mean": 0.25, "rewards/numeric/mean": 0.5, "logged/words": 12.0}
        second = {"rewards/short/mean": 0.75, "rewards/numeric/mean": 1.0, "logged/words": 6.0}
        write_metrics(tmp_path / name, [refresh(0, 0, **first), refresh(4, 1, **second), update(8)])
    charts = report(tmp_path / "a").charts()
    rewards = {row["label"]: row["y"] for row in layer(charts["Rewards"], "lines")}
    assert rewards == {"short": [0.25, 0.25, 0.75, 0.75], "numeric": [0.5, 0.5, 1, 1]}
    (words,) = layer(charts["Logged words"], "lines")
    assert (words["x"], words["y"]) == ([0, 4, 4, 8], [12, 12, 6, 6])
    charts = report(tmp_path / "a", tmp_path / "b").charts()
    both = {(row["label"], row["kind"]) for row in layer(charts["Rewards"], "lines")}
    assert both == {(run, reward) for run in "ab" for reward in ("short", "numeric")}


def test_a_path_that_is_not_a_run_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match="is not a run"):
        write_report([tmp_path / "none"], tmp_path / "out.html")
    with pytest.raises(UsageError, match="is not a run"):
        write_card(tmp_path / "none", None)
    assert list(tmp_path.iterdir()) == []
