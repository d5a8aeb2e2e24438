import json
import math
import tracemalloc

import pytest

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import MetricsLog, counting, encoded, read_metrics, rewrite, surveyed
from mugrpo.disk.publishing import with_checksum
from tests.cases import table


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


def test_lines_come_back_in_order_as_flat_objects_unless_one_was_changed(path):
    lines = list(read_metrics(path))
    assert lines[0] == {"kind": "refresh", "update": 0, "stage": 0}
    assert [line.get("loss") for line in lines] == [None, 0.5, 0.25, None, 0.125, 1.5]
    stored = [json.loads(text) for text in path.read_text().splitlines()]
    assert stored == [with_checksum(line) for line in lines]
    path.write_text(path.read_text().replace("0.125", "0.126"))
    with pytest.raises(RunStopped, match=r"line 5 is not a metrics line \(its sha256.*repair"):
        list(read_metrics(path))


def test_opening_removes_only_lines_after_the_restored_update_and_then_appends(path):
    before = path.read_bytes()
    MetricsLog(path, 4).close()
    assert path.read_bytes() == before
    log = MetricsLog(path, 2)
    assert log.removed == 2  # updates
    assert kinds(path) == [("refresh", 0), ("update", 1), ("update", 2), ("evaluation", 2)]
    log.append("update", 3, loss=9.0)
    log.close()
    assert kinds(path)[-1] == ("update", 3)
    assert [line["loss"] for line in read_metrics(path) if line["update"] == 3] == [9.0]


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
    log.append("update", 1, loss=math.nan, norm=math.inf, low=-math.inf, count=3)
    log.close()
    text = (tmp_path / "m.jsonl").read_text()
    assert text.startswith(
        '{"kind": "update", "update": 1, "loss": null, "norm": null, "low": null, '
        '"count": 3, "sha256": "'
    )


U = [{"kind": "update", "update": n, "loss": n / 4} for n in range(6)]
EVALUATED = [{"kind": "evaluation", "update": n, "accuracy": 0.5} for n in range(6)]
LOST = [{"kind": "repair", "update": n} for n in range(6)]
NESTED = b'{"a":' * 100_000
LINE = {"kind": "update", "update": 5}


@table(
    ("line", "says"),
    [
        (LINE | {"kind": 7}, "its kind is no text"),
        (LINE | {"kind": None}, "its kind is no text"),
        *((LINE | {"update": x}, "its update is no") for x in ("5", -1, True, 5.0, None, 10**30)),
        *((LINE | {"loss": x}, "'loss' is no number") for x in ("0.5", [1], {"a": 1}, True)),
        (LINE | {"loss": 10**400}, "'loss' is no number"),  # more than a float can hold
        (LINE | {"loss": math.nan}, "'loss' is no number"),
        (LINE | {"loss": math.inf}, "'loss' is no number"),
        ([LINE], "no sha256"),
        (b"null", "no sha256"),
        (b'{"kind": "update"', "not a metrics line"),
        (b"\xff\xfe", "not a metrics line"),
        (b"\0" * 500, "not a metrics line"),
        (NESTED, "not a metrics line"),
        (b"1" * 5000, "not a metrics line"),
        (b"x" * (3 << 20), "not a metrics line"),
        (b"", "not a metrics line"),
    ],
)
def test_a_line_that_no_run_writes_is_refused_and_left_out(tmp_path, line, says):
    data = (
        line
        if isinstance(line, bytes)
        else json.dumps(with_checksum(line) if isinstance(line, dict) else line).encode()
    )
    path, whole = tmp_path / "metrics.jsonl", b"".join(map(encoded, U[1:5]))
    path.write_bytes(whole + data + b"\n" + encoded({"kind": "update", "update": 5}))
    with pytest.raises(RunStopped, match="line 5 is"):
        list(read_metrics(path))
    with pytest.raises(RunStopped, match="line 5 is"):
        MetricsLog(path, 4)
    history = surveyed(path)
    assert says in (history.fault or "") and (history.wrong, history.made) == (1, 5)
    assert [line["update"] for line in counting(path, history)] == [1, 2, 3, 4, 5]
    rewrite(path, 5)
    assert path.read_bytes() == whole + encoded({"kind": "update", "update": 5})


@table(
    ("lines", "wrong", "kept"),
    [
        ([U[1], U[2]], None, [U[1], U[2]]),
        ([EVALUATED[0], U[1], EVALUATED[1], EVALUATED[0]], 4, [EVALUATED[0], U[1], EVALUATED[1]]),
        # an evaluation that is made again says something else
        ([EVALUATED[0], EVALUATED[0] | {"accuracy": 1}, U[1]], None, None),
        ([U[1], U[1]], 2, [U[1]]),
        ([U[1], U[1] | {"loss": 9}], 2, [U[1]]),  # the first one counts
        ([U[1], U[2], U[1], U[2], U[3]], 3, [U[1], U[2], U[3]]),  # two runs', or one's twice
        ([U[1], U[3]], 2, [U[1], LOST[2], U[3]]),
        ([U[2], U[3]], 1, [LOST[1], U[2], U[3]]),
        ([U[1], EVALUATED[2], U[3]], 2, [U[1], LOST[2], EVALUATED[2], U[3]]),
        ([U[1], LOST[3], U[4]], None, None),
        ([U[1], LOST[1], U[2]], 2, [U[1], U[2]]),
        ([U[1], LOST[3], LOST[3], U[4]], 3, [U[1], LOST[3], U[4]]),
        # far beyond the newest checkpoint: of another run
        ([U[1], U[5] | {"update": 500}, U[2]], 2, [U[1], U[2]]),
        ([U[1], LOST[5] | {"update": 500}, U[2]], 3, [U[1], U[2]]),
    ],
)
def test_lines_of_updates_come_once_each_without_a_gap(tmp_path, lines, wrong, kept):
    """What is kept of them is right, and says what is lost."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(map(encoded, lines)))
    history = surveyed(path)
    if wrong is None:
        assert history.fault is None and list(read_metrics(path)) == lines
    else:
        assert f"line {wrong} is of kind" in (history.fault or "")
        with pytest.raises(RunStopped, match=f"line {wrong} is of kind"):
            list(read_metrics(path))
    last = max(line["update"] for line in kept or lines)
    rewrite(path, last)
    assert list(read_metrics(path)) == (kept or lines)
    rewrite(path, last + 1)  # there is a checkpoint of the next update
    told = [*(kept or lines), {"kind": "repair", "update": last + 1}]
    assert list(read_metrics(path)) == told and surveyed(path).made == last + 1
    MetricsLog(path, last).close()
    assert list(read_metrics(path)) == (kept or lines)


def test_of_several_lines_of_a_kind_and_update_the_last_one_counts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"kind": "refresh", "update": 0, "time/score": 3.0, "occupancy": 0.5},
        {"kind": "update", "update": 1},
        {"kind": "refresh", "update": 0, "time/score": 4.0, "occupancy": 0.25},
    ]
    path.write_bytes(b"".join(map(encoded, lines)))
    assert list(counting(path, surveyed(path))) == lines[1:]
    assert list(counting(path, surveyed(path), ("re",))) == lines[2:]


def test_lines_of_updates_are_never_held(tmp_path):
    """Of 20,000 of them, no more than of 2,000, but for 64 KiB."""
    peaks = []
    for count in (2_000, 20_000):
        path = tmp_path / f"{count}.jsonl"
        with open(path, "wb") as file:
            for n in range(1, count + 1):
                file.write(encoded({"kind": "update", "update": n, "loss": 0.5}))
        tracemalloc.start()
        MetricsLog(path, count - 1).close()  # removes a line
        history = surveyed(path)
        assert sum(1 for _ in counting(path, history)) == count - 1
        rewrite(path, count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 16), peaks


def test_a_reopened_log_continues_after_the_lines_of_another_process(path):
    log = MetricsLog(path, 4)
    log.close()
    other = MetricsLog(path, 4)
    other.append("update", 5, loss=2.5)
    other.append("update", 6, loss=3.5)
    other.close()
    log = MetricsLog(path, 5)
    assert log.has("evaluation", 2) and not log.has("evaluation", 5)
    log.append("evaluation", 5, accuracy=0.5)
    assert log.has("evaluation", 5)
    assert kinds(path)[-2:] == [("update", 5), ("evaluation", 5)]
    log.close()


def test_a_line_that_is_put_twice_is_written_once_whatever_its_values(path):
    log, values = MetricsLog(path, 4), {"gap": math.nan, "share": 0.5}
    assert log.put("refresh", 4, **values)
    content = path.read_bytes()
    assert not log.put("refresh", 4, **values, **{"time/score": 1.0})
    assert path.read_bytes() == content
    assert log.put("refresh", 4, gap=0.5) and path.read_bytes().startswith(content)
    assert kinds(path)[-2:] == [("refresh", 4)] * 2  # the last one counts
    log.close()
