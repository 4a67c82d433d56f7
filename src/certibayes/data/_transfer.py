"""One HTTP transfer into a file, taken up again where an earlier one broke off."""

import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from types import MappingProxyType
from urllib.error import HTTPError

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 18


def transfer(url: str, partial: Path, report: Callable[[int, int | None], None]) -> None:
    """Bring a file down, continuing what `partial` already holds if the server can.

    Args:
        url: The address.
        partial: The file to write; what it holds is kept if the server answers 206, and replaced otherwise.
        report: Called with the bytes done and the bytes in all, None where the server does not say.

    Raises:
        OSError: The server refused, could not be reached or broke off; `partial` keeps what came.
        http.client.HTTPException: The server does not speak HTTP.
    """
    done = partial.stat().st_size if partial.exists() else 0
    response = (_open_at(url, done) if done else None) or _open(url)
    with response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            done = 0  # the server sends the whole file
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        with partial.open("ab" if done else "wb") as file:
            report(done, total)
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                report(done, total)
    # http.client takes an early end of the body for its end, without a word.
    if total is not None and done < total:
        raise ConnectionError(f"the connection closed after {done} of {total} bytes")


def _open_at(url: str, start: int) -> HTTPResponse | None:
    """Ask for the bytes from `start` on; None if the server has no such bytes or sends others."""
    try:
        response = _open(url, {"Range": f"bytes={start}-"})
    except HTTPError as error:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        raise
    sent = response.headers.get("Content-Range", "").strip()
    if response.status == HTTPStatus.PARTIAL_CONTENT and not sent.startswith(f"bytes {start}-"):
        response.close()
        return None
    return response


def _open(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "certibayes", **headers})
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()  # it holds the connection open, to let its body be read
        raise
    return response
