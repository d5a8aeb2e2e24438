"""Draw runs into one HTML file that needs no network. Drawing needs no torch."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_file

__all__ = ["publish_text", "write_report"]


def write_report(
    runs: Sequence[Path],
    out: Path | None = None,
    every: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Draw the runs at `runs` into one file, and return its path.

    The default is RUN/report.html for one run. Several runs share each chart, by default in
    report.html in the working directory. A browser reloads the page every `every` seconds. What is
    wrong with the runs' files is on the page, and is said. Raises UsageError if a path is not a
    run, and RunStopped if its config.json is damaged.
    """
    from mugrpo.report.page import page  # the charts' libraries take a second
    from mugrpo.report.read import read_runs

    read = read_runs(runs)
    for fault in (fault for run in read for fault in run.faults):
        say(fault)
    text = page(read, every)
    target = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    publish_text(target, text)
    return target


def publish_text(target: Path, text: str) -> None:
    """Publish `text` as a file. Raises UsageError if it cannot be written, as beside a run that
    may only be read, or if what is there does not begin as `text` does: it may be data.
    """
    try:
        if target.is_file():
            with open(target, "rb") as there:
                if there.read(4) not in (b"", text[:4].encode()):
                    raise UsageError(f"{target} is another file; name another with --out")
        with publish_file(target) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written ({error.strerror}); name another file with --out"
        ) from None
