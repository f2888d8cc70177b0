"""Vectors of a set by several processes: those of one process, whoever is killed, here and at a URL."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import photo, saved, tiny_model
from runs import call, complaint
from test_tars import jpeg, write_tar

import grainline
from grainline.data.vector_parts import read_vectors
from grainline.embedding import work as working
from grainline.embedding.work import Settings, Work, work_through
from grainline.embedding.write import gpu_of_rank
from grainline.errors import UserError

Capture = pytest.CaptureFixture[str]
SCENES = "scenes:dev?count=30&size=32"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tiny_model("clip"), tmp_path_factory.mktemp("model") / "m"))


def command(model: str, source: str, out: object, *more: object) -> list[str]:
    arguments = ["encode", model, source, "--out", out, "--rows", 2, *more]
    return [sys.executable, "-m", "grainline", *map(str, arguments)]


@pytest.fixture(scope="module")
def alone(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one process."""
    out = tmp_path_factory.mktemp("alone") / "v"
    assert call(*command(model, SCENES, out)[3:]) == 0
    return out


def content(folder: Path) -> dict[str, bytes]:
    """All that counts: the manifest, and the parts that it names."""
    parts = json.loads((folder / "manifest.json").read_text())["parts"]
    names = [f"parts/{name}" for part in parts for name in part["files"]]
    return {name: (folder / name).read_bytes() for name in ("manifest.json", *names)}


def test_vectors_are_those_of_the_model(model: str, alone: Path) -> None:
    vectors, rows = read_vectors(str(alone))
    opened = grainline.load(model)
    source = grainline.data.open_source.open_source(SCENES)
    for i in range(30):
        record = source[i]
        torch.testing.assert_close(
            torch.from_numpy(vectors["images"][i]), opened.encode(images=[record.image]).vector[0]
        )
        torch.testing.assert_close(
            torch.from_numpy(vectors["texts"][i]), opened.encode(texts=[record.whole]).vector[0]
        )
    assert [row["row"] for row in rows if row["side"] == "images"] == list(range(30))
    assert [row["key"] for row in rows if row["side"] == "texts"] == [source[i].key for i in range(30)]
    assert not list((alone / "claims").iterdir())


def test_processes_that_are_killed_lose_nothing(model: str, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "v"
    running = [subprocess.Popen(command(model, SCENES, out), stdout=subprocess.PIPE) for _ in range(3)]
    done = out / "done"
    for killed in range(2):
        while not done.is_dir() or len(list(done.glob("*.json"))) < 3 * killed + 1:
            time.sleep(0.02)
        running[killed].send_signal(signal.SIGKILL)
    assert [process.wait() for process in running] == [-9, -9, 0]
    for process in running:
        assert process.stdout is not None
        process.stdout.close()
    assert content(out) == content(alone)


def test_a_claim_of_another_machine_is_free_when_it_was_not_renewed(
    model: str, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(grainline.load(model), tmp_path / "v", Settings(SCENES, rows=2))
    claim = tmp_path / "v" / "claims" / f"{work.units[3].name}.json"
    claim.parent.mkdir()
    claim.write_text(json.dumps({"host": "far away", "process": 1, "time": time.time()}))
    (claim.parent / f"{work.units[5].name}.json").write_text("{")
    monkeypatch.setattr(working, "PAUSE", 0.05)
    monkeypatch.setattr(working, "LEASE", 1.0)
    begin = time.time()
    assert work_through(work) == 15
    assert time.time() - begin > 0.9
    work.finish()
    assert content(tmp_path / "v") == content(alone)


def test_a_unit_that_two_processes_encode_counts_once(model: str, alone: Path, tmp_path: Path) -> None:
    works = [Work(grainline.load(model), tmp_path / "v", Settings(SCENES, rows=2)) for _ in range(2)]
    for work in works:
        for unit in work.units:
            work.encode(unit)
    assert works[0].finish() == works[1].finish()
    assert content(tmp_path / "v") == content(alone)


def test_failed_rows_are_listed_and_encoded_again_when_asked(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    for i in range(5):
        photo(tmp_path / "photos" / f"{i}.png", i)
    whole = (tmp_path / "photos" / "3.png").read_bytes()
    (tmp_path / "photos" / "3.png").write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))
    arguments = command(model, str(tmp_path / "photos"), tmp_path / "v")[3:]
    assert call(*arguments) == 0
    assert "(4 images), " in capsys.readouterr().out
    (failed,) = (tmp_path / "v" / "parts").glob("*.failed.jsonl")
    (line,) = failed.read_text().splitlines()
    assert json.loads(line)["cause"] == "corrupt image"
    (tmp_path / "photos" / "3.png").write_bytes(whole)
    assert call(*arguments) == 0
    assert "(4 images), " in capsys.readouterr().out
    before = {path.name for path in (tmp_path / "v" / "done").iterdir()}
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "v" / "done").iterdir()}
    assert call(*arguments, "--retry") == 0
    assert "(5 images), " in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "v" / "done").iterdir()} == before
    assert sum(path.stat().st_mtime_ns != old for path, old in times.items()) == 1
    vectors, rows = read_vectors(str(tmp_path / "v"))
    assert [row["key"] for row in rows] == [f"{i}.png" for i in range(5)]
    assert len(vectors["images"]) == 5
    assert not list((tmp_path / "v" / "parts").glob("*.failed.jsonl"))


def test_only_files_that_are_new_are_encoded(model: str, tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()

    def tar(number: int) -> None:
        files = {f"{number}{n}.jpg": jpeg(n) for n in range(3)} | {
            f"{number}{n}.txt": b"A dog." for n in range(3)
        }
        write_tar(tmp_path / "tars" / f"{number}.tar", files)

    tar(1)
    tar(3)
    settings = Settings(str(tmp_path / "tars"), rows=2)
    work = Work(grainline.load(model), tmp_path / "v", settings)
    assert work_through(work) == 4
    work.finish()
    tar(2)
    work = Work(grainline.load(model), tmp_path / "v", settings)
    assert work_through(work) == 2
    assert work.finish()["images"] == 9
    keys = [row["key"] for row in read_vectors(str(tmp_path / "v"))[1] if row["side"] == "images"]
    assert keys == [f"{tar}{n}" for tar in (1, 2, 3) for n in range(3)]


def test_parquet_holds_the_same(model: str, alone: Path, tmp_path: Path, capsys: Capture) -> None:
    assert call(*command(model, SCENES, tmp_path / "p", "--format", "parquet")[3:]) == 0
    (vectors, rows), (expected, lines) = read_vectors(str(tmp_path / "p")), read_vectors(str(alone))
    assert [{k: v for k, v in row.items() if v is not None} for row in rows] == lines
    for side in ("images", "texts"):
        np.testing.assert_array_equal(vectors[side], expected[side])
    assert call(*command(model, SCENES, tmp_path / "h", "--half")[3:]) == 0
    half = read_vectors(str(tmp_path / "h"))[0]["images"]
    np.testing.assert_array_equal(half, expected["images"].astype(np.float16))
    assert "--format is 'csv'; allowed: safetensors, parquet" in complaint(
        capsys, *command(model, SCENES, tmp_path / "q", "--format", "csv")[3:]
    )


def test_wrong_numbers_are_one_line(model: str, tmp_path: Path, capsys: Capture) -> None:
    for option, text in (
        (("--rows", 0), "--rows is 0; allowed"),
        (("--actors", 0), "--actors is 0; allowed"),
    ):
        assert text in complaint(capsys, "encode", model, SCENES, "--out", tmp_path / "v", *option)
    text = complaint(capsys, "encode", model, SCENES, "--out", tmp_path / "v", "--engine", "spark")
    assert "--engine is 'spark'; allowed: processes, ray" in text


def test_each_process_of_torchrun_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, rank, gpu in ((0, "1", None), (2, None, None), (2, "1", "cuda:1"), (2, "5", "cuda:1")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda number=number: number)
        monkeypatch.setenv("LOCAL_RANK", rank) if rank else monkeypatch.delenv("LOCAL_RANK", raising=False)
        assert gpu_of_rank() == gpu


def test_a_part_that_was_changed_is_noticed(alone: Path, tmp_path: Path) -> None:
    shutil.copytree(alone, tmp_path / "v")
    part = next((tmp_path / "v" / "parts").glob("*.safetensors"))
    data = bytearray(part.read_bytes())
    data[-3] ^= 1
    part.write_bytes(data)
    with pytest.raises(
        UserError, match=r"is not as it was written: delete it and done/.*\.json, and encode again"
    ):
        read_vectors(str(tmp_path / "v"))


def test_nothing_that_can_be_used_is_a_mistake(model: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"no image")
    text = complaint(capsys, *command(model, str(tmp_path / "photos"), tmp_path / "v")[3:])
    assert "no sample of" in text
    assert "a.jpg" in text


# At a URL


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    pytest.importorskip("moto", reason="moto is not installed: make engines")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: make engines")
    from clouds import BUCKET, s3_server

    with s3_server() as proxy, pytest.MonkeyPatch.context() as patch:
        values = {"AWS_ENDPOINT_URL": proxy.url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        for name, value in {**values, "AWS_MAX_ATTEMPTS": "1", "AWS_DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem().mkdir(BUCKET)
        yield proxy


def test_a_folder_on_s3_is_that_of_the_disk_over_a_failing_network(
    model: str, alone: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clouds import BUCKET, ERROR, OK

    from grainline.data.formats import remote, storage

    monkeypatch.setattr(remote, "PAUSE", 0.001)
    monkeypatch.setattr(remote, "TRIES", 12)
    bucket.fault = lambda number: ERROR if number % 5 == 3 else OK
    out = f"s3://{BUCKET}/vectors"
    process = subprocess.Popen(command(model, SCENES, out), stdout=subprocess.DEVNULL)
    assert call(*command(model, SCENES, out)[3:]) == 0
    assert process.wait() == 0
    bucket.fault = lambda _: OK
    for name, data in content(alone).items():
        assert storage.read_plain(f"{out}/{name}") == data
    np.testing.assert_array_equal(read_vectors(out)[0]["texts"], read_vectors(str(alone))[0]["texts"])
    assert storage.create(f"{out}/new", b"1")
    assert not storage.create(f"{out}/new", b"2")
    assert storage.read_plain(f"{out}/new") == b"1"
    storage.remove(f"{out}/new")
    storage.remove(f"{out}/new")
    assert not storage.exists(f"{out}/new")


# By Ray


def actors() -> list[int]:
    """The processes of Ray that have the model."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(b"ray::MapWorker"):
                pids.append(int(process.name))
    return pids


@pytest.mark.filterwarnings("default")  # Ray warns of itself
def test_ray_loses_nothing_when_a_node_and_an_actor_are_lost(model: str, alone: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: make engines")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        from grainline.embedding.ray_engine import encode_units

        work = Work(grainline.load(model), tmp_path / "v", Settings(SCENES, rows=2))
        lost = []

        def progress(done: int, _: int) -> None:
            if done == 4 and not lost:
                lost.append(node)
                cluster.remove_node(node)
            if done == 9 and (running := actors()):
                lost.append(running[0])
                os.kill(running[0], signal.SIGKILL)

        encode_units(work, model, cluster.address, 2, progress)
        assert len(lost) == 2
        work.finish()
        assert content(tmp_path / "v") == content(alone)
    finally:
        ray.shutdown()
        cluster.shutdown()
