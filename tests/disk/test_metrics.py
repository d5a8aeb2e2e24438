from __future__ import annotations

import json
import math

import pytest

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import MetricsLog, read_metrics
from mugrpo.disk.publishing import with_sum


@pytest.fixture
def path(tmp_path):
    """A log with a refresh at update 0, updates 1 to 4, and an evaluation after update 2."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0)
    log.append("refresh", 0, stage=0)
    log.append("update", 1, loss=0.5)
    log.append("update", 2, loss=0.25)
    log.append("evaluation", 2, accuracy=0.75)
    log.append("update", 3, loss=0.125)
    log.append("update", 4, loss=1.5)
    log.close()
    return path


def kinds(path):
    return [(line["kind"], line["update"]) for line in read_metrics(path)]


def test_lines_come_back_in_order_as_flat_objects(path):
    lines = list(read_metrics(path))
    assert lines[0] == {"kind": "refresh", "update": 0, "stage": 0}
    assert [line.get("loss") for line in lines] == [None, 0.5, 0.25, None, 0.125, 1.5]
    stored = [json.loads(text) for text in path.read_text().splitlines()]
    assert stored == [with_sum(line) for line in lines]


def test_opening_removes_lines_after_the_restored_update_and_then_appends(path):
    log = MetricsLog(path, 2)
    assert kinds(path) == [("refresh", 0), ("update", 1), ("update", 2), ("evaluation", 2)]
    log.append("update", 3, loss=9.0)
    log.close()
    assert kinds(path)[-1] == ("update", 3)
    assert [line["loss"] for line in read_metrics(path) if line["update"] == 3] == [9.0]


def test_opening_at_the_last_update_changes_no_byte(path):
    before = path.read_bytes()
    MetricsLog(path, 4).close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", ['{"kind": "update", "update": 5, "lo', '{"kind"', "{"])
def test_a_last_line_cut_short_by_a_kill_is_skipped_and_then_replaced(path, torn):
    whole = path.read_text()
    path.write_text(whole + torn)
    assert kinds(path)[-1] == ("update", 4) and len(kinds(path)) == 6
    log = MetricsLog(path, 4)
    log.append("update", 5, loss=2.0)
    log.close()
    assert path.read_text().startswith(whole) and torn + '{"kind"' not in path.read_text()
    assert list(read_metrics(path))[-1] == {"kind": "update", "update": 5, "loss": 2.0}


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path):
    log = MetricsLog(tmp_path / "m.jsonl", 0)
    log.append("update", 1, loss=math.nan, norm=math.inf, low=-math.inf, count=3, name="x")
    log.close()
    text = (tmp_path / "m.jsonl").read_text()
    assert text.startswith(
        '{"kind": "update", "update": 1, "loss": null, "norm": null, "low": null, '
        '"count": 3, "name": "x", "sha256": "'
    )


def test_a_line_whose_number_was_changed_is_refused(path):
    path.write_text(path.read_text().replace("0.125", "0.126"))
    with pytest.raises(RunStopped, match=r"line 5 is not a metrics line \(its sha256"):
        list(read_metrics(path))


def test_a_reopened_log_continues_after_the_lines_of_another_process(path):
    log = MetricsLog(path, 4)
    log.close()
    other = MetricsLog(path, 4)
    other.append("update", 5, loss=2.5)
    other.append("update", 6, loss=3.5)
    other.close()
    log.reopen(5)
    assert log.has("update", 5) and not log.has("update", 6)
    log.append("evaluation", 5, accuracy=0.5)
    assert kinds(path)[-2:] == [("update", 5), ("evaluation", 5)]
    log.close()


def test_a_line_that_is_put_twice_is_written_once_whatever_its_values(path):
    log, values = MetricsLog(path, 4), {"gap": math.nan, "shares": (1, 2)}
    assert log.put("refresh", 4, **values)
    content = path.read_bytes()
    assert not log.put("refresh", 4, **values, **{"time/score": 1.0})
    assert path.read_bytes() == content
    assert log.put("refresh", 4, gap=0.5) and path.read_bytes().startswith(content)
    assert kinds(path)[-2:] == [("refresh", 4)] * 2  # the last one counts
    log.close()


def test_a_log_without_a_file_passes_every_line_to_its_listener():
    heard = []
    log = MetricsLog(None, 4, lambda *line: heard.append(line))
    assert log.put("refresh", 4, gap=1) and log.put("refresh", 4, gap=2)
    assert heard == [("refresh", 4, {"gap": 1}), ("refresh", 4, {"gap": 2})]
    log.close()
