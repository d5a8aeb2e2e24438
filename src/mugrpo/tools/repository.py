"""Repositories on the Hugging Face Hub that hold what a run has published.

`mugrpo-run.json` in a repository says whose run it is and which files the last publish has written.
A publish is one commit, so that one that is cut short leaves the repository as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.processes.messages import printable

STAMP = "mugrpo-run.json"
_THE_HUBS = {".gitattributes"}  # files that it makes itself
# Errors of the connection; the first is the HTTPError of the httpx that the library uses.
_ON_THE_WAY = (HfHubHTTPError.__bases__[0], ConnectionError, RuntimeError)
_LATER = (408, 425, 429)  # statuses that a later attempt may not get; so are those from 500

Files = Mapping[str, Path | bytes]  # name in the repository -> a file, or the content


@dataclass(frozen=True)
class Repository:
    """A repository: its kind ("model" or "dataset"), OWNER/NAME, and what is there now."""

    kind: str
    name: str
    head: str | None = None  # the last commit, or None if there is no repository yet
    replaced: frozenset[str] = frozenset()  # files to remove, unless they are written again


def require_name(name: str) -> None:
    """Raise UsageError if `name` is not the OWNER/NAME of a repository."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if name.count("/") != 1:
        raise UsageError("a repository is called OWNER/NAME, such as alice/my-model; correct that")


def look(kind: str, name: str, run: str | None, *, public: bool, replace: bool) -> Repository:
    """Return the repository as it is now. `run` is the id of the run to be published.

    Raises UsageError if there is no token, if the repository holds something else than this run
    (unless `replace`), if it is public and `public` is not set or the other way round, or if the
    Hub refuses; RunStopped if another attempt may succeed.
    """
    with _explained(name), TemporaryDirectory() as folder:
        if get_token() is None:
            raise UsageError("there is no token; log in with `hf auth login`, or set HF_TOKEN")
        api = HfApi()
        try:
            info = api.repo_info(name, repo_type=kind)
        except RepositoryNotFoundError as error:
            if error.response.status_code != 404:  # the token was refused
                raise
            return Repository(kind, name)
        held = {file.rfilename for file in getattr(info, "siblings", None) or ()} - _THE_HUBS
        stamp: dict[str, object] = {}
        if STAMP in held:
            file = api.hf_hub_download(
                name, STAMP, repo_type=kind, revision=info.sha, cache_dir=folder
            )
            stamp = _stamp(Path(file))
    if bool(info.private) == public:
        now, way_out = ("private", "leave out") if public else ("public", "add")
        raise UsageError(f"{name} is {now}; {way_out} --public, or change that in its settings")
    same = run is not None and stamp.get("run") == run
    if held and not same and not replace:
        what = "another run" if "run" in stamp else "something that no run has published"
        raise UsageError(
            f"{name} holds {what}; choose another name, or replace all of it with --force"
        )
    listed = stamp.get("files") if same else None
    written = {str(file) for file in listed} if isinstance(listed, list) else held
    return Repository(kind, name, info.sha, frozenset(held & written))


def send(repository: Repository, files: Files, title: str, *, public: bool) -> str:
    """Make `files` the content of the repository, in one commit. Return the commit's URL.

    A repository that is not there is created. Files that others have added beside those of the same
    run stay. Raises UsageError and RunStopped as `look` does.
    """
    name, kind, api = repository.name, repository.kind, HfApi(library_name="mugrpo")
    with _explained(name):
        if repository.head is None:
            api.create_repo(name, repo_type=kind, private=not public)
        removed = sorted(repository.replaced - files.keys())
        commit = api.create_commit(
            name,
            [
                *(CommitOperationAdd(file, source) for file, source in files.items()),
                *(CommitOperationDelete(file, is_folder=False) for file in removed),
            ],
            repo_type=kind,
            commit_message=title,
            parent_commit=repository.head,
        )
    return str(commit.commit_url)


def _stamp(file: Path) -> dict[str, object]:
    try:
        return dict(json.loads(file.read_bytes()))
    except (ValueError, TypeError, RecursionError):
        return {}


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn an error of the Hub into one sentence. It never holds a header or a URL."""
    try:
        yield
    except (UsageError, RunStopped):
        raise
    except Exception as error:  # some of the library's have no other base
        raise _refusal(name, error) from None


def _refusal(name: str, error: BaseException) -> UsageError | RunStopped:
    """Return what to raise for an error of the Hub, or of the way to it."""
    on_the_way = isinstance(error, _ON_THE_WAY)
    while not isinstance(error, HfHubHTTPError) and error.__cause__ is not None:
        error = error.__cause__
        on_the_way |= isinstance(error, _ON_THE_WAY)
    if isinstance(error, OfflineModeIsEnabled):
        return UsageError("HF_HUB_OFFLINE is set; unset it to publish")
    if isinstance(error, ValueError):
        return UsageError(f"the Hub refuses {name}: {printable(' '.join(str(error).split()))}")
    if not isinstance(error, HfHubHTTPError):
        reason = printable(f"{type(error).__name__}: {error}".partition("\n")[0])
        if on_the_way:
            reason = f"{constants.ENDPOINT} cannot be reached ({reason}); check the network"
            return RunStopped(reason)
        if isinstance(error, OSError):
            return RunStopped(f"{name} was not published ({reason}); mend that on this machine")
        return UsageError(f"{name} was not published ({reason}); correct HF_ENDPOINT or HF_TOKEN")
    status, owner = error.response.status_code, name.partition("/")[0]
    said = f"{status}: {printable(error.server_message)}" if error.server_message else f"{status}"
    if status == 412:
        return RunStopped(f"{name} was changed by someone else meanwhile ({said})")
    if status in _LATER or status >= 500:
        made = "/commit/" in error.response.url.path  # perhaps
        way_out = "look whether it has the commit" if made else "try later"
        return RunStopped(f"the Hub did not take {name} ({said}); {way_out}")
    ways_out = {
        401: "the token is not valid: log in again with `hf auth login`, or correct HF_TOKEN",
        403: f"the token must be allowed to write to {owner}: choose one at {constants.ENDPOINT}/"
        "settings/tokens",
        404: f"check that {owner} exists and that the token is allowed to write there",
        409: "it exists, and the token may not see it: choose another name or token",
    }
    way_out = ways_out.get(status, "look at what --dry-run FOLDER writes")
    return UsageError(f"the Hub refuses {name} ({said}); {way_out}")
