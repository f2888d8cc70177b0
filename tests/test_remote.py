"""Data at URLs: the same batches as on the disk, byte for byte, over a network that fails; and its cache."""

import csv
import gc
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import BUCKET, CUT, EMPTY, ERROR, OK, SLOW, Proxy, s3_server, upload
from runs import call as grainline
from runs import logged, steps_done
from runs import recipe as write_recipe
from test_dataset import CROP, TOKENIZER, random_image
from test_tars import write_tar

from grainline.data.batches import Batch, load_batches
from grainline.data.dataset import Batches, TrainSet
from grainline.data.formats import blocks, parquet, ranges, remote
from grainline.data.formats.storage import (
    Range,
    fetch,
    names_in,
    open_regular,
    read_plain,
    read_range,
    state_of,
)
from grainline.data.open_source import open_source
from grainline.data.record import CorruptSample, Source
from grainline.data.texts import TextsConfig
from grainline.errors import Unreachable, UserError

pytest.importorskip("moto", reason="moto is not installed: make engines")
pytest.importorskip("s3fs", reason="s3fs is not installed: make engines")

NUMBER = 24  # of images


@pytest.fixture(scope="module")
def server() -> Iterator[Proxy]:
    with s3_server() as proxy, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")  # only our own tries
        yield proxy


@pytest.fixture(scope="module")
def fs(server: Proxy) -> Any:
    import s3fs

    system = s3fs.S3FileSystem(endpoint_url=server.url, use_listings_cache=False)
    system.mkdir(BUCKET)
    return system


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images as tars, a folder, tables, and Parquet."""
    home = tmp_path_factory.mktemp("local")
    images = [random_image(n) * (1 + 40 * (n % 3)) for n in range(NUMBER)]  # some of several blocks
    texts = [f"Image {n}. It has the number {n}." for n in range(NUMBER)]
    (home / "tars").mkdir()
    for tar in range(3):
        rows = range(tar * 8, tar * 8 + 8)
        files = {f"{n:04d}.png": images[n] for n in rows} | {f"{n:04d}.txt": texts[n].encode() for n in rows}
        write_tar(home / "tars" / f"t-{tar}.tar", files)
    (home / "folder" / "below").mkdir(parents=True)
    for n in range(NUMBER):
        place = home / "folder" / ("below" if n % 2 else ".") / f"{n:04d}"
        place.with_suffix(".png").write_bytes(images[n])
        place.with_suffix(".json" if n % 4 else ".txt").write_text(
            json.dumps({"caption": texts[n]}) if n % 4 else texts[n]
        )
    (home / "table" / "images").mkdir(parents=True)
    with (home / "table" / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *((f"{n}.png", texts[n]) for n in range(NUMBER))])
    rows = [{"image": f"{n}.png", "caption": texts[n]} for n in range(NUMBER)]
    (home / "table" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    karpathy = [
        {"filename": f"{n}.png", "split": "test", "sentences": [{"raw": texts[n]}]} for n in range(NUMBER)
    ]
    (home / "table" / "karpathy.json").write_text(json.dumps({"images": karpathy}))
    for n in range(NUMBER):
        (home / "table" / "images" / f"{n}.png").write_bytes(images[n])
    import pyarrow as pa
    from pyarrow.parquet import write_table

    for name, column in (("bytes", images), ("paths", [f"images/{n}.png" for n in range(NUMBER)])):
        write_table(
            pa.table({"image": column, "caption": texts}),
            home / "table" / f"{name}.parquet",
            row_group_size=5,
        )
    return home


@pytest.fixture(scope="module")
def cloud(fs: Any, local: Path) -> str:
    """The same files on S3."""
    return upload(fs, local, "data")


@pytest.fixture(autouse=True)
def clean(server: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No faults and an empty cache; pauses between tries are short."""
    server.reset()
    monkeypatch.setenv("GRAINLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0.001)
    ranges._objects.cache_clear()
    remote._answers.clear()
    ranges._say.cache_clear()


def batches(source: Source, workers: int = 0) -> list[Batch]:
    """Two epochs of random crops."""
    data = TrainSet(source, TOKENIZER, CROP, TextsConfig(), context=32, seed=1)
    return list(load_batches(data, Batches(len(source), 8, 1, range(2 * NUMBER // 8)), workers))


def assert_same(one: Sequence[Batch], other: Sequence[Batch]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert (a.truncated, a.corrupt) == (b.truncated, b.corrupt) == (0, ())
        for x, y in zip([*a.images, *a.texts], [*b.images, *b.texts], strict=True):
            assert x is y is None or torch.equal(x, y)


def faults(seed: int, often: float = 0.35) -> Callable[[int], str]:
    """Errors of the server, slow answers, and answers that break off, at random requests."""

    def fault(number: int) -> str:
        rng = random.Random(f"{seed}/{number}")
        return rng.choice([ERROR, ERROR, CUT, EMPTY, SLOW]) if rng.random() < often else OK

    return fault


FORMS = [
    "tars",
    "tars/t-*.tar",
    "tars/t-{0..2}.tar",
    "folder",
    "table/rows.csv?root=images",
    "table/rows.jsonl?root=images",
    "coco-karpathy:table/karpathy.json?images=@/table/images",
    "table/bytes.parquet",
    "table/paths.parquet",
]


def at(form: str, place: str) -> str:
    kind, colon, path = form.rpartition(":")
    return f"{kind}{colon}{place}/{path}".replace("@", place)


@pytest.mark.parametrize("form", FORMS)
def test_batches_over_a_failing_network_are_those_of_the_disk(
    form: str, local: Path, cloud: str, server: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TRIES", 12)  # a third of all requests fails
    here = open_source(at(form, str(local)))
    server.fault = faults(FORMS.index(form))
    there = open_source(at(form, cloud))
    assert (len(there), list(there.keys())) == (len(here), list(here.keys()))  # type: ignore[attr-defined]
    assert there.fingerprint() == here.fingerprint()
    assert_same(batches(there), batches(here))
    assert len([one for one in range(len(server.requests)) if server.fault(one) != OK]) > 0


@pytest.mark.parametrize("form", ["tars", "folder"])
def test_workers_read_the_same_over_a_failing_network(
    form: str, local: Path, cloud: str, server: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TRIES", 12)
    there = open_source(at(form, cloud))
    there[0]  # connections are open before the fork
    server.fault = faults(7)
    assert_same(batches(there, workers=2), batches(open_source(at(form, str(local)))))


def test_a_second_pass_reads_the_disk(cloud: str, server: Proxy) -> None:
    source = open_source(f"{cloud}/tars")
    first = batches(source)
    server.reset()
    assert_same(batches(source), first)
    assert not server.requests
    again = open_source(f"{cloud}/tars")  # as another process does
    assert_same(batches(again), first)
    assert not [one for one in server.requests if one[2]]


def test_a_batch_is_fetched_at_once(cloud: str, server: Proxy) -> None:
    source = open_source(f"{cloud}/folder")
    server.reset()
    server.fault = lambda _: SLOW  # 0.3 s an answer
    list_of = list(range(16))
    source.prefetch(list_of)  # type: ignore[attr-defined]
    asked = len(server.requests)
    assert asked >= 16
    records = [source[n] for n in list_of]
    assert len(server.requests) == asked
    assert len({record.key for record in records}) == 16


def test_headers_of_a_tar_are_read_in_few_requests(fs: Any, server: Proxy, tmp_path: Path) -> None:
    files = {f"{n:05d}.{kind}": b"x" * 3000 for n in range(400) for kind in ("jpg", "txt")}
    write_tar(tmp_path / "many.tar", files)
    fs.pipe_file(f"{BUCKET}/many.tar", (tmp_path / "many.tar").read_bytes())
    server.reset()
    assert len(open_source(f"s3://{BUCKET}/many.tar")) == 400
    assert len(server.requests) < 12
    server.reset()
    assert len(open_source(f"s3://{BUCKET}/many.tar")) == 400  # the index is on the disk
    assert not [one for one in server.requests if one[2]]


def test_a_server_that_does_not_answer_ends_in_one_line_and_damages_nothing(
    cloud: str, local: Path, server: Proxy, tmp_path: Path
) -> None:
    for form in ("tars", "folder", "table/bytes.parquet"):
        source = open_source(at(form, cloud))
        shutil.rmtree(tmp_path / "cache" / "remote")
        ranges._objects.cache_clear()
        server.fault = lambda _: ERROR
        for workers in (0, 1):
            with pytest.raises(
                Unreachable, match=r"s3://.* cannot be read after 6 tries \(.*; run the command"
            ) as e:
                batches(source, workers)
            assert "\n" not in str(e.value)
        server.fault = lambda _: OK
        assert_same(batches(source), batches(open_source(at(form, str(local)))))


def test_training_ends_in_one_line_and_goes_on_where_it_was(
    cloud: str,
    local: Path,
    server: Proxy,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = write_recipe(tmp_path)

    def arguments(place: object, run: str) -> list[object]:
        fields = f"data.paths=[{place}/folder]", "data.texts.foils=0", "train.max_steps=6"
        return ["train", recipe, "--out", tmp_path / run, *(x for field in fields for x in ("--set", field))]

    assert grainline(*arguments(local, "here")) == 0
    monkeypatch.setenv(blocks.LIMIT, "0")  # each image is asked for whenever it is used
    images = 0

    def fault(number: int) -> str:
        nonlocal images
        images += ".png" in server.requests[number][1] and bool(server.requests[number][2])
        return ERROR if images > 60 else OK

    server.fault = fault
    assert grainline(*arguments(cloud, "there")) == 2
    said = capsys.readouterr().err.splitlines()
    assert "cannot be read after 6 tries" in said[-1]
    assert len(said) == 2  # the other line says that nothing is cached
    done = steps_done(tmp_path / "there")
    assert 0 < done < 6
    server.fault = lambda _: OK
    assert grainline(*arguments(cloud, "there"), "--resume") == 0
    losses = [
        {line["step"]: line["terms"] for line in logged(tmp_path / run) if line["kind"] == "train"}
        for run in ("here", "there")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6


def test_what_is_not_there_is_a_mistake_or_a_missing_image(cloud: str, fs: Any) -> None:
    with pytest.raises(UserError, match=r"nothing at s3://bucket/none\.tar: name a file"):
        open_source(f"s3://{BUCKET}/none.tar")
    with pytest.raises(UserError, match=r"where nothing is;"):
        open_source(f"{cloud}/tars/t-{{0..3}}.tar")
    with pytest.raises(UserError, match=r"no folder of images at s3://bucket/none, named for"):
        open_source(f"{cloud}/table/rows.csv", images=f"s3://{BUCKET}/none")
    rows = "image,caption\n0.png,A.\nnone.png,B.\n"
    fs.pipe_file(f"{BUCKET}/data/table/some.csv", rows.encode())
    source = open_source(f"{cloud}/table/some.csv", images=f"{cloud}/table/images")
    assert source[0].captions == ("A.",)
    with pytest.raises(CorruptSample, match=r"missing image: .*some\.csv: row 2 \(looked for s3://"):
        source[1]


def test_a_tar_that_was_replaced_is_unreadable_until_it_is_opened_again(fs: Any, tmp_path: Path) -> None:
    first = write_tar(tmp_path / "a.tar", {"a.png": random_image(1) * 50, "a.txt": b"One."}).read_bytes()
    other = write_tar(tmp_path / "b.tar", {"a.png": random_image(2) * 50, "a.txt": b"Two."}).read_bytes()
    fs.pipe_file(f"{BUCKET}/replaced.tar", first)
    source = open_source(f"s3://{BUCKET}/replaced.tar")
    fs.pipe_file(f"{BUCKET}/replaced.tar", other)
    for place in (tmp_path / "cache" / "remote").rglob("*"):
        if place.is_file():
            place.unlink()
    with pytest.raises(CorruptSample, match=r"unreadable file: .*changed after its index was read"):
        source[0]
    assert open_source(f"s3://{BUCKET}/replaced.tar")[0].captions == ("Two.",)


def test_a_web_server_is_read_by_ranges_or_not_at_all(
    cloud: str, local: Path, server: Proxy, fs: Any
) -> None:
    url = cloud.replace("s3:/", server.url)
    for form in ("tars/t-{0..2}.tar", "table/bytes.parquet"):
        assert_same(batches(open_source(f"{url}/{form}")), batches(open_source(at(form, str(local)))))
    images = f"{url}/table/images/"
    assert open_source(f"{url}/table/rows.csv#image=image", images=images)[3].key == "3.png"
    fs.pipe_file(f"{BUCKET}/large.tar", bytes(9 * 2**20), ACL="public-read")
    server.ranges = False
    assert_same(batches(open_source(f"{url}/tars/t-0.tar")), batches(open_source(f"{local}/tars/t-0.tar")))
    with pytest.raises(UserError, match=r"large\.tar: its server .*download it first"):
        open_source(f"{server.url}/{BUCKET}/large.tar")


# The cache of blocks


def cached(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache" / "remote").rglob("*") if path.is_file())


def test_blocks_that_were_damaged_on_the_disk_are_fetched_again(
    cloud: str, tmp_path: Path, local: Path
) -> None:
    path, plain = f"{cloud}/tars/t-1.tar", (local / "tars" / "t-1.tar").read_bytes()
    state = state_of(path)
    assert read_range(path, state, 0, state.size) == plain
    (file,) = cached(tmp_path)
    whole = file.read_bytes()
    rng = random.Random(0)
    for _ in range(30):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged if rng.random() < 0.7 else damaged[: rng.randrange(len(whole))])
        first = rng.randrange(state.size)
        size = rng.randrange(1, state.size)
        assert read_range(path, state, first, size) == plain[first : first + size]


def test_the_cache_keeps_to_its_limit(fs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(blocks.LIMIT, "0.001")  # a million bytes
    for n in range(20):
        fs.pipe_file(f"{BUCKET}/limit/{n}.bin", os.urandom(200_000))
    for n in range(20):
        assert len(read_plain(f"s3://{BUCKET}/limit/{n}.bin")) == 200_000
        assert sum(blocks._used(path.stat()) for path in cached(tmp_path)) < 1_300_000
    assert 3 <= len(cached(tmp_path)) <= 6  # the latest
    removed = cached(tmp_path)[0]
    removed.unlink()  # by another process
    for n in range(20):
        assert read_plain(f"s3://{BUCKET}/limit/{n}.bin") == fs.cat_file(f"{BUCKET}/limit/{n}.bin")


@pytest.mark.parametrize("why", ["limit", "folder"])
def test_without_a_cache_all_is_read_and_one_line_says_so(
    why: str,
    cloud: str,
    local: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if why == "limit":
        monkeypatch.setenv(blocks.LIMIT, "0")
    else:
        (tmp_path / "cache").touch()
    assert_same(batches(open_source(f"{cloud}/tars")), batches(open_source(f"{local}/tars")))
    said = capsys.readouterr().err
    assert said.count("remote files are not cached on this disk") == 1
    assert ("GRAINLINE_REMOTE_GB is 0" if why == "limit" else "cannot be written") in said


def test_a_full_disk_ends_the_keeping_alone(
    cloud: str, local: Path, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAINLINE_CACHE", str(tiny_disk))
    (tiny_disk / "filler").write_bytes(bytes(500_000))
    assert_same(batches(open_source(f"{cloud}/folder")), batches(open_source(f"{local}/folder")))
    assert "the disk is full" in blocks.cache().broken
    ranges._objects.cache_clear()
    gc.collect()  # closes the files there


@pytest.mark.parametrize("limit", ["", "x", "-1", "nan"])
def test_a_limit_is_a_number(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(blocks.LIMIT, limit)
    if limit:
        with pytest.raises(UserError, match=r"GRAINLINE_REMOTE_GB is .*; allowed is a number of GB"):
            blocks.cache()
    else:
        assert blocks.cache().limit == 20e9


def test_random_reads_equal_the_file(
    cloud: str, fs: Any, server: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TRIES", 12)
    plain = random.Random(1).randbytes(blocks.BLOCK * 21 + 17)
    fs.pipe_file(f"{BUCKET}/random.bin", plain)
    path = f"s3://{BUCKET}/random.bin"
    state = state_of(path)
    server.fault = faults(3, 0.2)
    rng = random.Random(2)
    for _ in range(60):
        first, size = rng.randrange(len(plain) + 10), rng.randrange(4 * blocks.BLOCK)
        if rng.random() < 0.3:
            fetch([Range(path, first, size)])
        assert read_range(path, state, first, size) == plain[first : first + size]
    with open_regular(path) as file:
        for _ in range(30):
            first, size = rng.randrange(len(plain)), rng.randrange(3 * blocks.BLOCK)
            file.seek(first)
            assert file.read(size) == plain[first : first + size]
    assert sorted(names_in(f"{cloud}/tars")) == ["t-0.tar", "t-1.tar", "t-2.tar"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec.core

    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Install gcsfs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UserError, match=r"gs://a/b\.tar needs a package: pip install 'grainline\[remote\]'"):
        open_source("gs://a/b.tar")


# Failures that once were taken for damage, or lost files


def test_headers_of_a_tar_that_cannot_be_read_leave_no_index(fs: Any, server: Proxy, tmp_path: Path) -> None:
    files = {f"{n}.png": random_image(n) * 600 for n in range(8)} | {f"{n}.txt": b"A." for n in range(8)}
    fs.pipe_file(f"{BUCKET}/h.tar", write_tar(tmp_path / "h.tar", dict(sorted(files.items()))).read_bytes())
    reads = 0

    def fault(number: int) -> str:
        nonlocal reads
        reads += bool(server.requests[number][2])
        return ERROR if reads > 1 else OK

    server.fault = fault
    with pytest.raises(Unreachable, match=r"h\.tar cannot be read after 6 tries"):
        open_source(f"s3://{BUCKET}/h.tar")
    server.fault = lambda _: OK
    assert len(open_source(f"s3://{BUCKET}/h.tar")) == 8


def test_a_wildcard_never_leaves_out_a_folder_that_cannot_be_listed(
    cloud: str, fs: Any, server: Proxy
) -> None:
    for folder in "xyz":
        fs.pipe_file(f"{BUCKET}/g/{folder}/a.tar", fs.cat_file(f"{BUCKET}/data/tars/t-0.tar"))
    for wrong in (ERROR, "403:AccessDenied"):
        server.fault = lambda n, wrong=wrong: wrong if "g%2Fy%2F&" in server.requests[n][1] else OK
        with pytest.raises(Unreachable):
            open_source(f"s3://{BUCKET}/g/*/*.tar")
    server.fault = lambda _: OK
    assert len(open_source(f"s3://{BUCKET}/g/*/*.tar")) == 24
    fs.pipe_file(f"{BUCKET}/g/y/._a.tar", b"x")
    assert len(open_source(f"s3://{BUCKET}/g/**/*.tar")) == 24
    assert cloud


@pytest.mark.parametrize(
    "wrong", [ERROR, "503:SlowDown", "503:ServiceUnavailable", "400:ExpiredToken", "403:AccessDenied"]
)
def test_no_answer_of_a_server_is_damage(wrong: str, cloud: str, server: Proxy, tmp_path: Path) -> None:
    for form in ("tars", "folder", "table/bytes.parquet", "table/rows.csv?root=images"):
        source = open_source(at(form, cloud))
        shutil.rmtree(tmp_path / "cache" / "remote")
        ranges._objects.cache_clear()
        parquet._read_cached.cache_clear()
        server.fault = lambda _: wrong
        with pytest.raises(Unreachable):
            source[0]
        if "parquet" not in form:
            with pytest.raises(Unreachable):
                source.prefetch([0, 1])  # type: ignore[attr-defined]
        if form in ("folder", "table/bytes.parquet"):
            with pytest.raises(Unreachable):
                source.fingerprint()
        answers = iter([wrong] * 3) if wrong.startswith("5") else iter(())
        server.fault = lambda _, answers=answers: next(answers, OK)
        assert source[0].captions


def test_what_is_gone_or_replaced_is_one_sample_and_not_the_end(fs: Any, server: Proxy, cloud: str) -> None:
    for n in range(8):
        fs.pipe_file(f"{BUCKET}/gone/{n}.png", random_image(n), ACL="public-read")
        fs.pipe_file(f"{BUCKET}/gone/{n}.txt", b"An image.", ACL="public-read")
    source = open_source(f"s3://{BUCKET}/gone")
    fs.rm_file(f"{BUCKET}/gone/3.png")
    fs.pipe_file(f"{BUCKET}/gone/5.png", random_image(50))
    data = TrainSet(source, TOKENIZER, CROP, TextsConfig(), context=32, seed=1)
    (batch,) = load_batches(data, Batches(8, 8, 1, range(1)), 0)
    assert {(cause, where.rpartition("/")[2][:5]) for cause, where in batch.corrupt} >= {
        ("missing image", "3.png")
    }
    assert ("unreadable file", "5.png") in {
        (c, w.partition(" (")[0].rpartition("/")[2]) for c, w in batch.corrupt
    }
    source = open_source(f"s3://{BUCKET}/gone")  # as it is now
    assert [source[n].key for n in range(len(source))] == [f"{n}.png" for n in range(8) if n != 3]
    web = cloud.replace("s3:/", server.url) + "/table/images/"
    rows = f"s3://{BUCKET}/gone/rows.csv"
    fs.pipe_file(rows, b"image,caption\n0.png,A.\n./1.png,B.\n../images/2.png,C.\n")
    for images in (web, f"{cloud}/table/images"):
        source = open_source(rows, images=images)
        assert [source[n].captions[0] for n in range(3)] == ["A.", "B.", "C."]


def test_a_web_file_that_was_replaced_is_noticed(fs: Any, server: Proxy, tmp_path: Path) -> None:
    for n, word in enumerate((b"Old.", b"New.")):
        data = write_tar(tmp_path / "w.tar", {"a.png": random_image(n) * 300, "a.txt": word}).read_bytes()
        fs.pipe_file(f"{BUCKET}/w.tar", data, ACL="public-read")
        if n == 0:
            source = open_source(f"{server.url}/{BUCKET}/w.tar")
            shutil.rmtree(tmp_path / "cache" / "remote")
    with pytest.raises(CorruptSample, match="it was changed after its index was read"):
        source[0]


def test_a_page_of_links_is_a_folder(local: Path) -> None:
    class Pages(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(local))

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{pages.server_address[1]}"
        for form in ("folder/", "tars/", "tars/t-*.tar", "tars/t-{0..2}.tar"):
            here, there = open_source(f"{local}/{form}"), open_source(f"{url}/{form}")
            assert [there[n] for n in range(len(there))] == [here[n] for n in range(len(here))]
        pages.shutdown()


def test_marks_of_folders_and_odd_names_are_those_of_a_disk(fs: Any, cloud: str, local: Path) -> None:
    tar = (local / "tars" / "t-0.tar").read_bytes()
    for name in ("m/", "m/a#1.tar", "m/b?.tar", "m/c%20d.tar"):
        fs.pipe_file(f"{BUCKET}/{name}", b"" if name.endswith("/") else tar)
    for _ in range(2):
        assert len(open_source(f"s3://{BUCKET}/m")) == 24
    assert next(iter(open_source(f"s3://{BUCKET}/m").keys())) == "a#1/0000"  # type: ignore[attr-defined]
    assert cloud


def test_other_files_in_the_cache_are_left_alone(cloud: str, tmp_path: Path) -> None:
    (tmp_path / "cache" / "remote").mkdir(parents=True)
    (tmp_path / "cache" / "remote" / ".DS_Store").touch()
    cache = blocks.cache()
    cache.wrote(cache.limit)
    assert not cache.broken
    assert open_source(f"{cloud}/folder")[0].captions


@pytest.mark.parametrize("number", [60])
def test_tars_do_not_stay_open(number: int, tmp_path: Path, local: Path) -> None:
    for n in range(number):
        os.link(local / "tars" / "t-0.tar", tmp_path / f"{n}.tar")
    for _ in range(2):
        before = len(os.listdir("/proc/self/fd"))
        source = open_source(str(tmp_path))
        assert len(os.listdir("/proc/self/fd")) < before + 10
    assert len(source) == number * 8


def test_local_paths_that_look_like_others_keep_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "httpdata").mkdir()
    (tmp_path / "httpdata" / "a.png").write_bytes(random_image(1))
    (tmp_path / "httpdata" / "rows.csv").write_text("photo,caption\na.png,A.\n")
    assert open_source("httpdata/rows.csv?image=photo")[0].captions == ("A.",)
    (tmp_path / "httpdata" / "a.json").symlink_to("nothing")
    (tmp_path / "httpdata" / "a.txt").write_text("B.")
    assert open_source("folder:httpdata")[0].captions == ("B.",)
