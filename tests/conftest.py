"""Shared fixtures. Every test starts from the same random numbers and one thread."""

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tests run side by side; more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import pytest

gc.disable()  # until everything is imported and collected, which makes little garbage

LONG = (
    "test_export",
    "test_sharded",
    "test_contract",
    "test_many_ranks",
    "test_hostile",
    "test_torchrun",
    "test_index_kills",
    "test_phrases_file",
    "test_resume",
    "test_finetune",
    "test_serve_page",
    "test_browser",
    "test_stop",
    "test_two_ranks",
    "test_resume_ranks",
    "test_serve_connections",
)
"""Files whose tests take longest, the longest first."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """One thread wherever tests run; the process that only hands them out needs no torch."""
    if session.config.getoption("dist", "no") == "no":
        import torch

        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files begin first, so that none of them is left over for one process at the end."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


def pytest_collection_finish() -> None:
    """What is imported by now stays: collections of garbage need not go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # graphs and parsed files are many objects, none of them garbage
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Plugins loaded for the summary look for who refers to an object, which skips what is frozen."""
    gc.collect()
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Garbage of the tests is gone; pytest need not look for it in all that was imported."""
    gc.freeze()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """No test depends on the tests before it."""
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # seeds of devices that are not there would be noted down, each with the stack of its call
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets named by GRAINLINE_DATA; tests that read it skip where there is none."""
    folder = Path(os.environ.get("GRAINLINE_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set GRAINLINE_DATA (docs/data.md says how to build it)")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by Selenium; it keeps a log of its console and of its requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("no chromium and chromedriver here; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "window-size=1200,900",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    with _disk(tmp_path / "disk", "1m") as folder:
        yield folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    with _disk(tmp_path / "disk", "4m") as folder:
        yield folder


@contextmanager
def _disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
