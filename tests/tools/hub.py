"""A stand-in for the Hugging Face Hub: what huggingface_hub asks of it, over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePath
from threading import Thread
from typing import Any

TOKEN = "hf_" + "SesameSesameSesameSesame"
_LARGE = (".safetensors", ".png", ".parquet")  # what the Hub stores as LFS
_REPOSITORY = re.compile(r"/api/(model|dataset)s/([\w.-]+/[\w.-]+)(/.*)?")
_LFS = re.compile(r"/(?:datasets/)?[\w.-]+/[\w.-]+\.git/info/lfs/objects/batch")
_FILE = re.compile(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")

Files = dict[str, bytes]


@dataclass
class Repo:
    private: bool
    commits: list[Files] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    @property
    def files(self) -> Files:
        return {name: data for name, data in self.commits[-1].items() if name != ".gitattributes"}

    @property
    def head(self) -> str:
        return hashlib.sha1(f"{len(self.commits)}{self.titles}".encode()).hexdigest()

    def commit(self, title: str, files: Files) -> None:
        self.titles.append(title)
        self.commits.append(files)


@dataclass
class Refusal:
    """The answer to requests whose method and path match `at`. Status 0 cuts the connection."""

    at: str
    status: int
    message: str = "as the test wants it"


class Hub:
    """The repositories, by ("model" or "dataset", OWNER/NAME), and the requests that came in."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.blobs: Files = {}
        self.asked: list[str] = []
        self.refusals: list[Refusal] = []
        hub = self

        class Handler(_Handler):
            def handle_one_request(self) -> None:
                self.hub = hub
                super().handle_one_request()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def create(self, kind: str, name: str, *, private: bool = True, **files: bytes) -> Repo:
        repo = self.repos[kind, name] = Repo(private)
        repo.commit("initial commit", {".gitattributes": b"*.bin lfs\n", **files})
        return repo

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        asked = f"{self.command} {path}"
        self.hub.asked.append(asked)
        refusal = next((r for r in self.hub.refusals if re.search(r.at, asked)), None)
        if refusal and refusal.status == 0:
            self.close_connection = True
        elif refusal:
            headers = {"X-Error-Message": refusal.message}
            self._answer({"error": refusal.message}, refusal.status, headers)
        elif path.startswith("/upload/"):  # as with S3, the address is the permission
            assert hashlib.sha256(body).hexdigest() == path.removeprefix("/upload/")
            self.hub.blobs[path.removeprefix("/upload/")] = body
            self._answer({})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            message = "Invalid credentials in Authorization header"
            self._answer({"error": message}, 401, {"X-Error-Message": message})
        elif path == "/api/validate-yaml":
            assert json.loads(body)["content"].startswith("---\n")
            self._answer({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif found := _REPOSITORY.fullmatch(path):
            self._repository((found[1], found[2]), found[3] or "", body)
        else:
            self._git(path, body)

    def _git(self, path: str, body: bytes) -> None:
        """Answer for what lies outside of /api: large files, and files of a repository."""
        if _LFS.fullmatch(path):
            self._batch(json.loads(body)["objects"])
        elif found := _FILE.fullmatch(path):
            self._file(("dataset" if found[1] else "model", found[2]), found[4])
        else:
            self._answer({"error": f"no such place: {path}"}, 404)

    def _create(self, wanted: dict[str, Any]) -> None:
        kind, name = wanted.get("type", "model"), f"{wanted['organization']}/{wanted['name']}"
        if (kind, name) in self.hub.repos:
            self._answer({"error": "You already created this repo"}, 409)
            return
        self.hub.create(kind, name, private="private" in (wanted.get("visibility"), *wanted))
        self._answer({"url": self._page(kind, name)})

    def _page(self, kind: str, name: str) -> str:
        return f"{self.hub.url}/{'datasets/' if kind == 'dataset' else ''}{name}"

    def _repository(self, key: tuple[str, str], what: str, body: bytes) -> None:
        repo = self.hub.repos.get(key)
        if repo is None:
            self._missing("RepoNotFound")
        elif what.startswith("/preupload/"):
            self._answer({"files": [_mode(f, repo.files) for f in json.loads(body)["files"]]})
        elif what.startswith("/commit/"):
            self._commit(key, repo, [json.loads(line) for line in body.splitlines()])
        elif what.startswith("/tree/"):
            self._missing("EntryNotFound")
        else:
            siblings = [{"rfilename": name} for name in repo.commits[-1]]
            facts = {"id": key[1], "sha": repo.head, "private": repo.private, "tags": []}
            self._answer({**facts, "siblings": siblings, "downloads": 0, "likes": 0})

    def _commit(self, key: tuple[str, str], repo: Repo, lines: list[dict[str, Any]]) -> None:
        header = lines[0]["value"]
        if header.get("parentCommit", repo.head) != repo.head:
            self._answer({"error": "A commit has happened since"}, 412)
            return
        files = dict(repo.commits[-1])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            else:
                del files[value["path"]]
        repo.commit(header["summary"], files)
        url = f"{self._page(*key)}/commit/{repo.head}"
        self._answer({"commitUrl": url, "commitOid": repo.head, "pullRequestUrl": None})

    def _batch(self, objects: list[dict[str, Any]]) -> None:
        for one in objects:
            if one["oid"] not in self.hub.blobs:
                one["actions"] = {"upload": {"href": f"{self.hub.url}/upload/{one['oid']}"}}
        self._answer({"transfer": "basic", "objects": objects})

    def _file(self, key: tuple[str, str], name: str) -> None:
        repo = self.hub.repos.get(key)
        if repo is None or name not in repo.commits[-1]:
            self._missing("EntryNotFound" if repo else "RepoNotFound")
            return
        data = repo.commits[-1][name]
        tag = hashlib.sha256(data).hexdigest()
        self._answer(data, 200, {"ETag": f'"{tag}"', "X-Repo-Commit": repo.head})

    def _missing(self, code: str) -> None:
        self._answer({"error": code}, 404, {"X-Error-Code": code})

    def _answer(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body


def _mode(wanted: dict[str, Any], files: Files) -> dict[str, Any]:
    """Return how a file is to be uploaded, and the id of what the repository has of this name."""
    name = wanted["path"]
    large = PurePath(name).suffix in _LARGE
    mode = {"path": name, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
    if (data := files.get(name)) is None:
        return mode
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data)
    return {**mode, "oid": (hashlib.sha256(data) if large else blob).hexdigest()}
