"""Downloads from a server on loopback, malformed archives of every kind; nothing is left behind."""

import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from cirl import paths
from cirl.data import benchmarks, fetch
from cirl.data.benchmarks import DATASETS, Archive
from cirl.data.layouts import index
from cirl.data.pretrained import sha256
from cirl.errors import UserError

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


class Server(ThreadingHTTPServer):
    """Serves `content` with ranges; after `break_after` bytes it closes the connection, once. Records the requests."""

    content, break_after, status = b"", None, 200

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/file.zip"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(server.status if server.status != 200 else 206 if asked else 200)
        self.send_header("Content-Type", "application/zip")
        self.send_header("Content-Length", str(len(server.content) - start))
        self.send_header("ETag", '"1"')
        if asked:
            end = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(server.content)}")
        self.end_headers()
        stop, server.break_after = server.break_after, None
        self.wfile.write(server.content[start:stop])
        self.wfile.flush()
        if stop:
            self.connection.close()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    made = Server()
    yield made
    made.shutdown()


def picture(seed=0):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (24, 24, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def tree(prefix="pacs/"):
    """The files of a miniature PACS, inside a wrapper folder."""
    return {f"{prefix}{d}/{c}/{i}.png": picture(i) for d in DOMAINS for c in ("dog", "house") for i in range(12)}


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files, mode="w", links=()):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return buffer.getvalue()


@pytest.fixture
def mirror(workspace, server, monkeypatch):
    """PACS comes from the server on loopback."""
    known = replace(DATASETS["pacs"], archives=(Archive("pacs.zip", (server.url,)),))
    monkeypatch.setitem(benchmarks.DATASETS, "pacs", known)
    server.content = zipped(tree())
    return server


def left_behind():
    return sorted(file.name for file in paths.RAW.iterdir()) if paths.RAW.exists() else []


@pytest.mark.filterwarnings("ignore:.*seeded 90/10")
class TestFetch:
    def test_a_benchmark_is_fetched_unpacked_and_indexed(self, mirror):
        fetch.fetch("pacs")
        assert len(index("pacs")) == 96 and left_behind() == ["pacs", "pacs.zip"]
        assert fetch.fetch("pacs").is_dir() and len(mirror.ranges) == 1  # what is there is not fetched again

    @pytest.mark.parametrize("prefix", ["", "PACS/", "pacs/images/", "kfold/", "a/b/kfold/"])
    def test_wrappers_are_taken_away(self, mirror, prefix):
        mirror.content = zipped(tree(prefix))
        fetch.fetch("pacs")
        assert len(index("pacs")) == 96

    @pytest.mark.parametrize(("name", "mode"), [("pacs.tar", "w"), ("PACS.tar.gz", "w:gz"), ("pacs.tar.xz", "w:xz")])
    def test_a_local_archive_is_used_without_network(self, mirror, name, mode):
        paths.RAW.mkdir(parents=True)
        (paths.RAW / name).write_bytes(tarred(tree(), mode))
        fetch.fetch("pacs", from_network=False)
        assert len(index("pacs")) == 96 and mirror.ranges == []

    def test_a_tar_is_unpacked_before_python_3_11_4(self, mirror, monkeypatch):
        def extractall(self, path, members):  # as in Debian's 3.11.2, without `filter`
            original(self, path, members, **options)

        original, options = tarfile.TarFile.extractall, {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
        paths.RAW.mkdir(parents=True)
        (paths.RAW / "pacs.tar").write_bytes(tarred(tree()))
        fetch.fetch("pacs", from_network=False)
        assert len(index("pacs")) == 96

    def test_a_domain_that_is_missing_is_brought_back_and_the_rest_is_left(self, mirror):
        fetch.fetch("pacs")
        mark = paths.RAW / "pacs" / "photo" / "dog" / "0.png"
        mark.write_bytes(picture(99))
        for file in (paths.RAW / "pacs" / "sketch").rglob("*.png"):
            file.unlink()
        for folder in ("sketch/dog", "sketch/house", "sketch"):
            (paths.RAW / "pacs" / folder).rmdir()
        fetch.fetch("pacs")
        assert len(index("pacs")) == 96 and mark.read_bytes() == picture(99)

    def test_without_network_it_says_which_file_goes_where(self, mirror):
        with pytest.raises(UserError) as error:
            fetch.fetch("pacs", from_network=False)
        assert mirror.url in str(error.value) and str(paths.RAW / "pacs.zip") in str(error.value)
        assert left_behind() == [] and mirror.ranges == []

    def test_without_network_every_missing_archive_is_named(self, workspace):
        with pytest.raises(UserError) as error:
            fetch.fetch("minidomainnet", from_network=False)
        assert all(archive.name in str(error.value) for archive in DATASETS["minidomainnet"].archives)

    def test_an_unknown_benchmark_is_refused(self):
        with pytest.raises(UserError, match="dataset='vlcs' is not possible; allowed: digits_dg, pacs"):
            fetch.fetch("vlcs")


class TestDownload:
    def test_an_interrupted_download_resumes_where_it_stopped(self, workspace, server):
        server.content = zipped({"a": np.random.default_rng(0).bytes(3_000_000)})
        server.break_after = 2_000_000
        file = fetch.download((server.url,), paths.RAW / "a.zip")
        assert file.read_bytes() == server.content
        started, resumed = server.ranges
        assert started is None and 0 < int(resumed.removeprefix("bytes=").rstrip("-")) <= 2_000_000
        assert left_behind() == ["a.zip"]

    def test_a_download_that_was_given_up_is_resumed_by_the_next_call(self, workspace, server, monkeypatch):
        server.content = zipped({"a": np.random.default_rng(0).bytes(3_000_000)})
        server.break_after = 2_000_000
        whole = fetch.gdown.download
        monkeypatch.setattr(fetch.gdown, "download", lambda *a, **k: whole(*a, **{**k, "retries": 0}))
        with pytest.raises(UserError, match="could not be fetched"):
            fetch.download((server.url,), paths.RAW / "a.zip")
        assert not (paths.RAW / "a.zip").exists()
        assert fetch.download((server.url,), paths.RAW / "a.zip").read_bytes() == server.content
        assert server.ranges[-1] is not None and left_behind() == ["a.zip"]

    def test_the_next_mirror_is_asked_where_one_fails(self, workspace, server):
        broken = Server()
        broken.status = 404
        server.content = zipped({"a": b"1"})
        assert fetch.download((broken.url, server.url), paths.RAW / "a.zip").read_bytes() == server.content
        broken.shutdown()

    def test_a_web_page_instead_of_an_archive_is_refused(self, workspace, server):
        server.content = b"<html>too many users have viewed this file recently</html>"
        with pytest.raises(UserError, match=r"the download is not an archive.*put it at .*a\.zip"):
            fetch.download((server.url,), paths.RAW / "a.zip")
        assert left_behind() == []

    def test_a_wrong_checksum_is_refused(self, workspace, server):
        server.content = zipped({"a": b"1"})
        with pytest.raises(UserError, match="does not have the published SHA-256"):
            fetch.download((server.url,), paths.RAW / "a.zip", sha="0" * 64)
        assert left_behind() == []

    def test_a_right_checksum_is_accepted(self, workspace, server, tmp_path):
        server.content = zipped({"a": b"1"})
        (tmp_path / "same").write_bytes(server.content)
        assert fetch.download((server.url,), paths.RAW / "a.zip", sha256(tmp_path / "same")).exists()

    def test_an_unreachable_server_is_named(self, workspace):
        with pytest.raises(UserError, match=r"127\.0\.0\.1:9/"):
            fetch.download(("http://127.0.0.1:9/x.zip",), paths.RAW / "a.zip")
        assert left_behind() == []


def unpacked(workspace, name, content):
    file = workspace / name
    file.write_bytes(content)
    fetch.unpack(file, workspace / "target", {"photo"})


class TestUnpack:
    @pytest.mark.parametrize("bad", ["../evil.png", "/evil.png", "photo/../../evil.png", "C:/evil.png", "..\\evil.png"])
    @pytest.mark.parametrize("pack", [zipped, tarred])
    def test_a_path_that_climbs_out_stops_everything(self, workspace, pack, bad):
        with pytest.raises(UserError, match="leads out of the target folder; nothing was unpacked"):
            unpacked(workspace, "a.archive", pack({"photo/dog/0.png": b"1", bad: b"1"}))
        assert sorted(file.name for file in workspace.iterdir()) == ["a.archive"]

    @pytest.mark.parametrize("target", ["/etc", "../..", "photo"])
    def test_a_link_stops_everything(self, workspace, target):
        with pytest.raises(UserError, match="not a plain file but a link"):
            unpacked(workspace, "a.tar", tarred({"photo/dog/0.png": b"1"}, links=[("photo/out", target)]))
        link = zipfile.ZipInfo("photo/out")
        link.external_attr = 0o120777 << 16
        with pytest.raises(UserError, match="not a plain file but a link"):
            unpacked(workspace, "a.tar", zipped({"photo/dog/0.png": b"1", link: target}))
        assert sorted(file.name for file in workspace.iterdir()) == ["a.tar"]

    @pytest.mark.parametrize("mode", ["zip", "w", "w:gz", "w:xz"])
    @pytest.mark.parametrize("damage", ["short", "flipped", "empty"])
    def test_a_short_or_corrupt_archive_is_named_and_leaves_nothing(self, workspace, mode, damage):
        files = {"photo/dog/0.png": picture(0) * 40, "photo/dog/1.png": picture(1) * 40}
        content = zipped(files) if mode == "zip" else tarred(files, mode)
        if damage == "short":
            content = content[: len(content) // 2]
        elif damage == "empty":
            content = b""
        elif mode == "w":
            pytest.skip("a plain tar has no checksum of its contents")
        else:
            content = bytearray(content)
            content[len(content) // 2] ^= 255
        with pytest.raises(
            UserError, match=r"a\.archive cannot be unpacked \(.*\); if it is truncated or damaged, delete it"
        ):
            unpacked(workspace, "a.archive", bytes(content))
        assert sorted(file.name for file in workspace.iterdir()) == ["a.archive"]

    def test_an_encrypted_archive_and_an_unknown_compression_raise_user_error(self, workspace):
        content = bytearray(zipped({"photo/dog/0.png": b"1"}))
        for start in (content.index(b"PK\x03\x04") + 6, content.index(b"PK\x01\x02") + 8):
            content[start] |= 1  # the flag of an encrypted entry
        with pytest.raises(UserError, match=r"a\.zip cannot be unpacked \(.*encrypted"):
            unpacked(workspace, "a.zip", bytes(content))
        content = bytearray(zipped({"photo/dog/0.png": b"1"}))
        for start in (content.index(b"PK\x03\x04") + 8, content.index(b"PK\x01\x02") + 10):
            content[start] = 99
        with pytest.raises(UserError, match=r"a\.zip cannot be unpacked \(.*compression"):
            unpacked(workspace, "a.zip", bytes(content))
        assert sorted(file.name for file in workspace.iterdir()) == ["a.zip"]

    @pytest.mark.parametrize("mode", ["zip", "w:gz"])
    def test_a_small_archive_does_not_fill_the_disk(self, workspace, mode):
        files = {"photo/dog/0.png": bytes(200_000_000)}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("photo/dog/0.png", files["photo/dog/0.png"])
        content = buffer.getvalue() if mode == "zip" else tarred(files, mode)
        with pytest.raises(UserError, match=r"would unpack to 0\.2 GB, far more than images do; nothing was unpacked"):
            unpacked(workspace, "a.archive", content)
        assert sorted(file.name for file in workspace.iterdir()) == ["a.archive"]

    def test_an_archive_that_does_not_fit_is_not_begun(self, workspace, monkeypatch):
        monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
        with pytest.raises(UserError, match=r"unpacks to .* GB, and 0\.0 GB are free"):
            unpacked(workspace, "a.zip", zipped({"photo/dog/0.png": bytes(1000)}))

    def test_existing_files_are_not_overwritten(self, workspace):
        unpacked(workspace, "a.zip", zipped({"photo/dog/0.png": b"mine"}))
        unpacked(workspace, "b.zip", zipped({"photo/dog/0.png": b"other", "splits/list.txt": b"new"}))
        assert (workspace / "target/photo/dog/0.png").read_bytes() == b"mine"
        assert (workspace / "target/splits/list.txt").read_bytes() == b"new"


def test_the_sum_of_contents_feels_pixels_and_not_compression(tmp_path):
    pixels = np.arange(768, dtype=np.uint8).reshape(16, 16, 3)
    sums = []
    for level, change in ((0, 0), (9, 0), (9, 1)):
        (tmp_path / "photo" / "dog").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels + change).save(tmp_path / "photo" / "dog" / "a.png", compress_level=level)
        sums.append(fetch.content_sum(tmp_path, ["photo/dog/a.png"]))
    assert sums[0] == sums[1] != sums[2]
    Image.fromarray(np.full((16, 16), 7, np.uint8)).save(tmp_path / "photo" / "dog" / "a.png")
    grey = fetch.content_sum(tmp_path, ["photo/dog/a.png"])
    Image.fromarray(np.full((16, 16, 3), 7, np.uint8)).save(tmp_path / "photo" / "dog" / "a.png")
    assert grey == fetch.content_sum(tmp_path, ["photo/dog/a.png"])
