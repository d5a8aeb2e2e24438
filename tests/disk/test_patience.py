from __future__ import annotations

from pathlib import Path

import pytest

from mugrpo.disk import publishing as module
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import Patience


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def looks(patience: Patience, clock: Clock, seconds: int, **options: bool) -> None:
    for _ in range(seconds):
        clock.now += 1
        patience.look(**options)


def test_a_folder_without_progress_is_named_after_a_minute_and_given_up_after_half_an_hour(
    tmp_path: Path, clock: Clock
):
    said: list[str] = []
    patience = Patience(tmp_path, "the ranks", said.append)
    looks(patience, clock, 60)
    assert said == []
    looks(patience, clock, 1700)
    assert said == [f"waiting for the ranks: nothing has changed in {tmp_path} for 60 seconds"]
    sentence = f"the ranks: nothing has changed in {tmp_path} for 1800 seconds; all machines"
    with pytest.raises(RunStopped, match=sentence):
        looks(patience, clock, 60)


def test_every_change_in_the_folder_is_progress(tmp_path: Path, clock: Clock):
    """A file appears, grows and goes, each 25 minutes apart."""
    said: list[str] = []
    patience = Patience(tmp_path, "the ranks", said.append)
    file = tmp_path / "file"
    steps = (file.touch, lambda: file.write_text("more"), file.unlink)
    for count, step in enumerate(steps):
        looks(patience, clock, 1500)
        assert len(said) == count + 1
        step()
    looks(patience, clock, 1500)
    assert len(said) == len(steps) + 1


def test_an_endless_wait_is_only_named(tmp_path: Path, clock: Clock):
    said: list[str] = []
    looks(Patience(tmp_path, "the ranks", said.append), clock, 5000, endless=True)
    assert len(said) == 1
