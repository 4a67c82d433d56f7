"""Downloads from a server on this machine that misbehaves in every way a server does."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from certibayes.data import download
from certibayes.data._sources import SOURCES, RemoteFile
from certibayes.errors import DownloadFailed, InvalidInput

CONTENT = bytes(range(256)) * 4096  # several chunks


@dataclass
class Site:
    """What the server serves, how it behaves, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {"/file": CONTENT})
    ranges: bool = True
    range_shift: int = 0
    lengths: bool = True
    break_after: int | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def sources(self, *paths: str, md5: str | None = None) -> dict[str, tuple[RemoteFile, ...]]:
        checksum = md5 or hashlib.md5(CONTENT).hexdigest()
        urls = tuple(self.address + path for path in paths or ("/file",))
        return {"mnist": (RemoteFile("mnist/file", checksum, urls),)}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            body, start = state.files.get(self.path), 0
            if body is None:
                self.send_error(404)
                return
            if wanted and state.ranges:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
                start += state.range_shift
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            if state.lengths:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            self.wfile.write(body[start : state.break_after])

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        state.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        server.shutdown()
        thread.join()


def left(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def put_partial(directory: Path, content: bytes) -> None:
    (directory / "mnist").mkdir()
    (directory / "mnist" / "file.partial").write_bytes(content)


def test_a_fresh_download_reports_its_progress(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    assert download("mnist", tmp_path, lambda *step: seen.append(step), site.sources()) == tmp_path
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT
    assert left(tmp_path) == {"mnist/file"}
    assert site.asked == [("/file", None)]
    assert seen[0] == ("file", 0, len(CONTENT)) and seen[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_good_file_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        download("mnist", tmp_path, sources=site.sources())
    assert len(site.asked) == 1


def test_a_bad_file_is_replaced(site: Site, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file").write_bytes(b"damaged")
    download("mnist", tmp_path, sources=site.sources())
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT


def test_a_part_is_continued(site: Site, tmp_path: Path) -> None:
    put_partial(tmp_path, CONTENT[:1000])
    seen: list[tuple[str, int, int | None]] = []
    download("mnist", tmp_path, lambda *step: seen.append(step), site.sources())
    assert site.asked == [("/file", "bytes=1000-")]
    assert seen[0] == ("file", 1000, len(CONTENT))
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT
    assert left(tmp_path) == {"mnist/file"}


def test_a_server_without_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    put_partial(tmp_path, b"x" * 1000)
    download("mnist", tmp_path, sources=site.sources())
    assert site.asked == [("/file", "bytes=1000-")]
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT


def test_a_server_that_sends_another_range_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.range_shift = 5
    put_partial(tmp_path, CONTENT[:1000])
    download("mnist", tmp_path, sources=site.sources())
    assert [wanted for _, wanted in site.asked] == ["bytes=1000-", None]
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_starts_over(site: Site, tmp_path: Path) -> None:
    put_partial(tmp_path, b"x" * (len(CONTENT) + 1))
    download("mnist", tmp_path, sources=site.sources())
    assert [wanted for _, wanted in site.asked] == [f"bytes={len(CONTENT) + 1}-", None]
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT


def test_a_whole_part_needs_only_its_name(site: Site, tmp_path: Path) -> None:
    put_partial(tmp_path, CONTENT)
    download("mnist", tmp_path, sources=site.sources())
    assert site.asked == []
    assert left(tmp_path) == {"mnist/file"}


def test_a_server_may_not_say_how_long_the_file_is(site: Site, tmp_path: Path) -> None:
    site.lengths = False
    seen: list[int | None] = []
    download("mnist", tmp_path, lambda _name, _done, total: seen.append(total), site.sources())
    assert set(seen) == {None}
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="checksum is not"):
        download("mnist", tmp_path, sources=site.sources(md5="0" * 32))
    assert left(tmp_path) == set()


def test_a_part_of_another_file_heals_at_the_second_call(site: Site, tmp_path: Path) -> None:
    put_partial(tmp_path, b"x" * 1000)
    with pytest.raises(DownloadFailed, match="checksum"):
        download("mnist", tmp_path, sources=site.sources())
    download("mnist", tmp_path, sources=site.sources())
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT


def test_a_broken_connection_is_taken_up_by_the_next_call(site: Site, tmp_path: Path) -> None:
    site.break_after = 300_000
    with pytest.raises(DownloadFailed, match="closed after 300000 of 1048576 bytes") as caught:
        download("mnist", tmp_path, sources=site.sources())
    assert f"`certibayes data get mnist --data-dir {tmp_path}`" in str(caught.value)
    assert "continues where it stopped" in str(caught.value)
    assert left(tmp_path) == {"mnist/file.partial"}
    site.break_after = None
    download("mnist", tmp_path, sources=site.sources())
    assert site.asked[-1] == ("/file", "bytes=300000-")
    assert (tmp_path / "mnist" / "file").read_bytes() == CONTENT


def test_an_interrupt_keeps_the_part(site: Site, tmp_path: Path) -> None:
    def stop(_name: str, done: int, _total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("mnist", tmp_path, stop, site.sources())
    assert left(tmp_path) == {"mnist/file.partial"}


def test_mirrors_are_tried_in_turn(site: Site, tmp_path: Path) -> None:
    site.files["/other"] = b"not it"
    download("mnist", tmp_path, sources=site.sources("/absent", "/other", "/file"))
    assert [path for path, _ in site.asked] == ["/absent", "/other", "/file"]
    assert left(tmp_path) == {"mnist/file"}


def test_every_failure_is_reported(site: Site, tmp_path: Path) -> None:
    site.files["/other"] = b"not it"
    sources = site.sources("/absent", "/other")
    with pytest.raises(DownloadFailed, match=r"/absent: HTTP Error 404.*/other: the checksum"):
        download("mnist", tmp_path, sources=sources)
    assert left(tmp_path) == set()


def test_a_server_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(DownloadFailed, match="refused"):
        download("mnist", tmp_path, sources=Site(address).sources())
    assert left(tmp_path) == set()


def test_a_place_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, not a directory")
    with pytest.raises(DownloadFailed, match="could not be written"):
        download("mnist", tmp_path / "data", sources=site.sources())


def test_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="There is no data set"):
        download("imagenet", tmp_path)


def tar_bytes(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def cifar_sources(site: Site, archive: bytes) -> dict[str, tuple[RemoteFile, ...]]:
    site.files["/cifar"] = archive
    md5 = hashlib.md5(archive).hexdigest()
    return {"cifar10": (RemoteFile("c.tar.gz", md5, (site.address + "/cifar",), "cifar-10-batches-bin"),)}


def test_an_archive_is_unpacked_and_heals_its_folder(site: Site, tmp_path: Path) -> None:
    sources = cifar_sources(site, tar_bytes({"cifar-10-batches-bin/test_batch.bin": b"batch"}))
    download("cifar10", tmp_path, sources=sources)
    whole = {"c.tar.gz", "cifar-10-batches-bin/test_batch.bin"}
    assert left(tmp_path) == whole
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"damaged")
    download("cifar10", tmp_path, sources=sources)
    assert (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").read_bytes() == b"batch"
    assert left(tmp_path) == whole and len(site.asked) == 1


@pytest.mark.parametrize(
    "archive",
    [
        tar_bytes({"elsewhere/file": b""}),
        tar_bytes({"cifar-10-batches-bin/../../escaped": b""}),
        tar_bytes({"cifar-10-batches-bin/file": bytes(5000)})[:-20],
        b"not an archive",
    ],
    ids=["another folder", "outside", "cut off", "no archive"],  # their bytes hold the time
)
def test_a_bad_archive_leaves_no_folder(site: Site, tmp_path: Path, archive: bytes) -> None:
    inner = tmp_path / "inner"
    with pytest.raises(DownloadFailed, match=r"c\.tar\.gz"):
        download("cifar10", inner, sources=cifar_sources(site, archive))
    assert left(tmp_path) == {"inner/c.tar.gz"}
    assert [path.name for path in inner.iterdir()] == ["c.tar.gz"]


def test_the_table_of_sources_is_whole() -> None:
    assert set(SOURCES) == {"mnist", "fashion-mnist", "cifar10", "svhn"}
    for file in (file for files in SOURCES.values() for file in files):
        assert len(bytes.fromhex(file.md5)) == 16
        assert file.urls and all(url.endswith(Path(file.path).name) for url in file.urls)
