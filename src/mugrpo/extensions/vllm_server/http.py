"""Ask a server over HTTP."""

import base64
import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from mugrpo.processes.messages import printable


class Refused(Exception):
    """A final refusal: a retry would get the same answer."""


class Unanswered(Exception):
    """A missing or incomplete answer, which a retry may get."""


_BUSY = (429, 502, 503, 504)  # statuses of a server that starts, or has too much to do


def ask(url: str, route: str, body: Any = None, *, seconds: float) -> Any:
    """Return a server's answer to `body` (or to a GET without one) from JSON; None if it is empty.

    `url` may have a user with a password, which are sent, and a query. The server may send nothing
    for `seconds`. Raises Refused or Unanswered; neither names the server.
    """
    try:
        with urllib.request.urlopen(_request(url, route, body), timeout=seconds) as answer:
            text = answer.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        try:
            text = error.read(500)
        except (OSError, HTTPException):
            text = b""
        reason = printable(text.decode(errors="replace"), 500)
        kind = Unanswered if error.code in _BUSY else Refused
        raise kind(f"answered {error.code} to {route}: {reason}") from None
    # URLError and timeouts are OSErrors. What is truncated or no JSON raises one of the others.
    except (OSError, HTTPException, ValueError) as error:
        late = isinstance(getattr(error, "reason", error), TimeoutError)
        reason = f"nothing within {seconds:g} s" if late else printable(str(error))
        raise Unanswered(f"does not answer ({reason})") from None


def _request(url: str, route: str, body: Any) -> urllib.request.Request:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")  # urllib would take the user for a host
    whole = urlunsplit(parts._replace(netloc=host, path=parts.path.rstrip("/") + route))
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(unquote_to_bytes(user)).decode()}"
    return urllib.request.Request(whole, data, headers)
