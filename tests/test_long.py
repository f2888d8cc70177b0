"""Retrieval with long captions: the files of each set, what a protocol reads of them, and the card."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from readers import Colours, Cosine, InMemory
from runs import call, complaint, recipe
from test_suite import painted, words
from torch import Tensor

from grainline.data.benchmarks.long_captions import DCI, DOCCI, IIW, LongCaptions, Rows, ShareGPT4V, Urban1k
from grainline.data.formats.joined import Joined
from grainline.data.formats.table import Table
from grainline.data.open_source import open_source, open_sources
from grainline.data.record import CorruptSample, Record, Source
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.result import read
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.long_retrieval import (
    RULES,
    LongRetrievalOptions,
    LongRetrievalSuite,
    Perturbed,
    under,
)
from grainline.training.recipe import read_recipe
from grainline.training.run import train

Capture = pytest.CaptureFixture[str]
TEN = range(10)
COLOURS = [(20 * i, 250 - 20 * i, 9 * i) for i in TEN]


def text(i: int) -> str:
    """What a tiny colour reader makes of an image: a period in a number, a line that ends without one."""
    return f"{words(COLOURS[i])} 3.5 m. Wide\nNear </s> it {i}."


REJOINED = [f"{words(COLOURS[i])} 3. 5 m. Wide. Near. it {i}" for i in TEN]


def images(folder: Path, names: list[str]) -> Path:
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), COLOURS[i % 10]).save(folder / name, format="PNG")
    return folder


def written(path: Path, content: Any) -> Path:
    """Text as it is, rows as JSON Lines where the name asks for them, else JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        lines = path.suffix in (".jsonl", ".jsonlines")
        content = "".join(json.dumps(row) + "\n" for row in content) if lines else json.dumps(content)
    path.write_text(content, encoding="utf-8")
    return path


def dci(folder: Path) -> list[str]:
    """The archive of DCI, extracted, with the images in photos/."""
    for i in TEN:
        short, extra = text(i).split("\n")
        fields = {"image": f"sa_{i}.jpg", "short_caption": short, "extra_caption": extra, "mask_data": {}}
        written(folder / "complete" / f"{100 + i}-data.json", fields)
        written(folder / "annotations" / f"{100 + i}-data.json", fields)
    written(folder / "splits.json", {"train": ["100-data.json"], "valid": [], "test": []})
    images(folder / "photos", [f"sa_{i}.jpg" for i in TEN])
    return [str(folder)]


def docci(folder: Path) -> list[str]:
    rows = [
        {
            "example_id": f"{split}_{i}",
            "split": split,
            "image_file": f"{split}_{i}.jpg",
            "description": text(i),
        }
        for split, number in (("train", 2), ("test", 10), ("qual_dev", 1))
        for i in range(number)
    ]
    images(folder, [f"test_{i}.jpg" for i in TEN] + ["train_0.jpg", "train_1.jpg"])
    return [str(written(folder / "docci_descriptions.jsonlines", rows))]


def urban(folder: Path) -> list[str]:
    """The folder of Long-CLIP, of which only the first lines are read."""
    for i in TEN:
        written(folder / "caption" / f"{i + 1}.txt", text(i))
    images(folder / "image", [f"{i + 1}.jpg" for i in TEN])
    return [str(folder)]


def urban_file(folder: Path) -> list[str]:
    notes = [{"image_id": i, "image": f"{i + 1}.jpg", "caption": text(i)} for i in TEN]
    images(folder, [f"{i + 1}.jpg" for i in TEN])
    return [str(written(folder / "annotations.json", {"annotations": notes}))]


def share(folder: Path) -> list[str]:
    rows = [turns(f"sam/sa_{i}.jpg", text(i)) for i in TEN]
    images(folder, [f"sam/sa_{i}.jpg" for i in TEN])
    return [str(written(folder / "share-captioner.json", rows))]


def turns(image: str, named: str) -> dict[str, Any]:
    said = [{"from": "human", "value": "<image>\nDescribe."}, {"from": "gpt", "value": named}]
    return {"id": image, "image": image, "conversations": said}


def iiw(folder: Path) -> list[str]:
    """Three files, whose images lie in one folder; two of them name images without a suffix."""
    rows: dict[str, list[dict[str, str]]] = {"IIW-400": [], "DOCCI_Test": [], "DCI_Test": []}
    for i in TEN:
        if i < 6:
            rows["IIW-400"].append({"image/key": f"aar_test_{i}", "IIW": text(i), "IIW-P5B": "No."})
        elif i < 8:
            rows["DOCCI_Test"].append({"image": f"test_{i}", "IIW": text(i), "DOCCI": "No."})
        else:
            rows["DCI_Test"].append({"image": f"sa_{i}.jpg", "IIW": text(i), "ex_id": "x"})
    names = [f"aar_test_{i}.jpg" for i in range(6)] + ["test_6.jpg", "test_7.jpg", "sa_8.jpg", "sa_9.jpg"]
    images(folder, names)
    return [str(written(folder / name / "data.jsonl", got)) for name, got in rows.items()]


def long_dci(folder: Path) -> list[str]:
    """The file that TULIP's script writes with pandas: divided by tabs, quotes around texts of two lines."""
    images(folder, [f"sa_{i}.jpg" for i in TEN])
    with (folder / "dci_long.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(
            [["filepath", "title"], *([f"sa_{i}.jpg", text(i)] for i in TEN)]
        )
    return [str(folder / "dci_long.csv")]


def goal(folder: Path, form: str = "../DCI/photos/sa_{}.jpg") -> list[str]:
    """A file of GOAL, which names the folders of its authors."""
    rows = [{"filename": form.format(f"{i:05}"), "caption": text(i)} for i in TEN]
    images(folder, [Path(row["filename"]).name for row in rows])
    return [str(written(folder / "test.json", rows))]


def goal_docci(folder: Path) -> list[str]:
    return goal(folder, "change/path/images/qual_test_{}.jpg")


class Readers(Colours):
    """Reads any text, as the number of its characters."""

    def of(self, text: str) -> tuple[Tensor, Tensor]:
        return super().of(f"{len(text)} 1 1")


FIRST_LINES = [text(i).split("\n")[0] for i in TEN]
MADE: dict[str, tuple[Callable[[Path], list[str]], type, str, list[str]]] = {
    "dci": (dci, DCI, "dci", REJOINED),
    "docci": (docci, DOCCI, "docci", [text(i) for i in TEN]),
    "urban": (urban, Urban1k, "urban-1k", FIRST_LINES),
    "urban-file": (urban_file, Urban1k, "urban-1k", FIRST_LINES),
    "sharegpt4v": (share, ShareGPT4V, "sv-1k", REJOINED),
    "iiw": (iiw, IIW, "iiw", REJOINED),
    "long-dci": (long_dci, Rows, "long-dci", [text(i) for i in TEN]),
    "goal-dci": (goal, Rows, "goal-dci", [text(i) for i in TEN]),
    "goal-docci": (goal_docci, Rows, "goal-docci", [text(i) for i in TEN]),
}


def opened(name: str, folder: Path) -> Source:
    """The set, with --images where its images do not stand where its files say."""
    return open_sources(MADE[name][0](folder), images=str(folder) if name == "iiw" else None)


def texts(source: Source) -> list[str]:
    return [source[i].captions[0] for i in range(len(source))]


def measured(source: Source, protocol: str = "default") -> tuple[Encodings, Any]:
    suite = LongRetrievalSuite(LongRetrievalOptions(protocol=protocol))
    data = suite.encode(Colours(), source)  # type: ignore[arg-type]
    return data, suite.measure(Cosine(), data, Settings(resamples=20))


# the files


@pytest.mark.parametrize("name", MADE)
def test_a_set_is_recognised_and_read_under_its_own_protocol(name: str, tmp_path: Path) -> None:
    source = opened(name, tmp_path)
    every = source.sources if isinstance(source, Joined) else [source]
    assert {type(one) for one in every} == {MADE[name][1]}
    assert [source[i].whole for i in TEN] == [text(i) for i in TEN], "the file itself is left as it is"
    read_as, card = under(source)
    assert card.protocol == MADE[name][2]
    assert texts(read_as) == MADE[name][3]
    assert [read_as[i].image for i in TEN] == [source[i].image for i in TEN]


@pytest.mark.parametrize("name", ["dci", "docci", "urban-1k", "sharegpt4v", "iiw"])
def test_another_file_named_as_a_set_is_one_line(name: str, tmp_path: Path) -> None:
    other = written(tmp_path / "rows.json", [{"image": "a.jpg", "caption": "A dog."}])
    path = tmp_path if name == "dci" else other
    with pytest.raises(
        UserError, match=r"is not (DOCCI|Urban-1k|ShareGPT4V|Image)|holds no JSON files of DCI"
    ):
        open_source(f"{name}:{path}")
    images(tmp_path, ["a.jpg"])
    assert isinstance(open_source(str(other)), Table)


def test_dci_is_read_from_the_archive_or_the_folder_of_its_files(tmp_path: Path) -> None:
    (root,) = dci(tmp_path)
    prints = {open_source(f"{root}{end}").fingerprint() for end in ("", "/complete", "/annotations/")}
    assert len(prints) == 1
    record = open_source(root)[3]
    assert (record.captions, record.long) == ((text(3).split("\n")[0],), text(3))
    written(tmp_path / "complete" / "105-data.json", '{"image": ')
    written(
        tmp_path / "complete" / "106-data.json",
        {"image": "sa_6.jpg", "short_caption": "A.", "extra_caption": " "},
    )
    source = open_source(root)
    with pytest.raises(CorruptSample, match=r"^corrupt row: .*105-data\.json"):
        source[5]
    assert source[6] == Record("sa_6.jpg", source[6].image, ("A.",))


def test_docci_is_its_test_split_unless_another_is_named(tmp_path: Path) -> None:
    (path,) = docci(tmp_path)
    assert list(open_source(path).keys()) == [f"test_{i}.jpg" for i in TEN]  # type: ignore[attr-defined]
    train = open_source(f"docci:{path}?split=train")
    assert (len(train), under(train)[1].protocol) == (2, "plain"), "nobody measures on it"
    with pytest.raises(UserError, match=r"no split dev: it has qual_dev \(1\), test \(10\), train \(2\)"):
        open_source(f"docci:{path}?split=dev")


def test_sv_is_the_beginning_of_its_file(tmp_path: Path) -> None:
    rows = [turns(f"{i}.jpg", f"Text {i}.\nEnd.") for i in range(1003)]
    images(tmp_path, ["0.jpg"])
    source = open_source(str(written(tmp_path / "sv.json", rows)))
    few, card = under(source, "sv-1k")
    assert (len(source), len(few), card.pairs) == (1003, 1000, 1000)
    assert list(few.keys())[-1] == "999.jpg"  # type: ignore[attr-defined]
    with pytest.raises(IndexError):
        few[1000]
    assert (few[0].captions, under(source, "sv-1k-long-clip")[0][0].captions) == (
        ("Text 0. End",),
        ("Text 0. End.",),
    )
    assert len(under(source, "sv-10k")[0]) == 1003
    shorter = open_source(f"sharegpt4v:{tmp_path / 'sv.json'}?rows=1001")
    assert (len(shorter), under(shorter)[0].fingerprint()) == (1001, few.fingerprint())
    assert under(shorter, "sv-10k")[0].fingerprint() != few.fingerprint()
    with pytest.raises(UserError, match=r"rows=0 in .*: a number of rows from 1 on"):
        open_source(f"sharegpt4v:{tmp_path / 'sv.json'}?rows=0")


def test_a_image_named_again_keeps_its_first_text(tmp_path: Path) -> None:
    rows = [turns("0.jpg", "A."), turns("1.jpg", "B."), turns("0.jpg", "C.")]
    images(tmp_path, ["0.jpg", "1.jpg"])
    source = open_source(str(written(tmp_path / "sv.json", rows)))
    assert isinstance(source, LongCaptions)
    assert texts(source) == ["A.", "B."]
    assert source.remarks == ("1 texts beyond the first of their image are left out",)


# the protocols


@pytest.mark.parametrize("protocol", RULES)
def test_a_protocol_reads_its_own_set_alone(protocol: str, tmp_path: Path) -> None:
    for name in MADE:
        source = opened(name, tmp_path / name)
        own = {one.benchmark for one in (source.sources if isinstance(source, Joined) else [source])}  # type: ignore[attr-defined]
        if own <= {*RULES[protocol].benchmarks}:
            assert under(source, protocol)[1].protocol == protocol
            continue
        with pytest.raises(
            UserError, match=rf"^--protocol {protocol} reads the files of .*allowed here: default"
        ):
            under(source, protocol)


@pytest.mark.parametrize("protocol", ["long-dci", "dci-fg-clip"])
def test_the_extra_caption_alone_is_read_where_there_is_one(protocol: str, tmp_path: Path) -> None:
    dci(tmp_path)
    fields = {"image": "sa_0.jpg", "short_caption": "A dog.\nB.", "extra_caption": "A Cat."}
    written(tmp_path / "complete" / "100-data.json", fields)
    written(tmp_path / "complete" / "103-data.json", fields | {"image": "sa_3.jpg", "extra_caption": " "})
    source, card = under(open_source(str(tmp_path)), protocol)
    assert (len(source), card.pairs) == (9, 7602)
    assert list(source.keys()) == [f"sa_{i}.jpg" for i in TEN if i != 3]  # type: ignore[attr-defined]
    extra = ["A Cat.", *(text(i).split("\n")[1] for i in TEN if i not in (0, 3))]
    lower = protocol == "dci-fg-clip"
    assert texts(source) == [one.lower() if lower else one for one in extra]
    assert source[0].image == open_source(str(tmp_path))[0].image
    assert source[3].image == open_source(str(tmp_path))[4].image
    assert source.remarks == ("1 images without extra_caption are left out",)  # type: ignore[attr-defined]
    suite = LongRetrievalSuite(LongRetrievalOptions(protocol=protocol))
    data = suite.encode(Readers(), open_source(str(tmp_path)))  # type: ignore[arg-type]
    assert data.positions == (0, 1, 2, *range(4, 10)), "the page reads images from the whole set"


def test_test_and_qual_test_of_docci_are_the_set_of_goal(tmp_path: Path) -> None:
    (path,) = docci(tmp_path)
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    written(Path(path), [row | {"split": row["split"].replace("dev", "test")} for row in rows])
    source, card = under(open_source(f"docci:{path}?split=test,qual_test"))
    assert (len(source), card.protocol, card.pairs) == (11, "goal-docci", 5100)


@pytest.mark.parametrize("name", ["docci", "iiw"])
def test_single_sentences_are_many_texts_of_an_image(name: str, tmp_path: Path) -> None:
    source = opened(name, tmp_path)
    single, card = under(source, f"{name}-fg")
    pieces = [(f"{words(COLOURS[i])} 3", "5 m", "Wide", "Near") for i in TEN]  # "it 3": as FLAIR's file
    assert [single[i].captions[:4] for i in TEN] == pieces
    assert {single[i].captions[4:] for i in TEN} == {(f"it {i}",) for i in TEN}
    assert card.captions == "each sentence, many an image"


def test_sentences_in_flairs_own_file_are_captions(tmp_path: Path) -> None:
    images(tmp_path, ["docci/test_00001.jpg", "dci/sa_2.jpg"])
    notes = [
        {"image_id": n > 1, "image": image, "caption": f"Sentence {n}", "caption_id": n}
        for n, image in enumerate(["docci/test_00001.jpg"] * 2 + ["dci/sa_2.jpg"])
    ]
    source = open_source(
        str(written(tmp_path / "a" / "t.json", {"annotations": notes})), images=str(tmp_path)
    )
    assert [source[i].captions for i in range(2)] == [("Sentence 0", "Sentence 1"), ("Sentence 2",)]


PARAGRAPH = ["A street.", "Two dogs run.", "It rains.", "The sky is grey.", "A car waits."]


@pytest.mark.parametrize(
    ("perturb", "number", "expected"),
    [
        ("first-removed", 5, [1, 2, 3, 4]),
        ("first-removed", 2, [1]),
        ("first-removed", 1, [0]),
        ("swapped", 5, [3, 1, 2, 0, 4]),
        ("swapped", 4, [3, 1, 2, 0]),
        ("swapped", 3, [2, 1, 0]),
        ("swapped", 1, [0]),
    ],
)
def test_sentences_are_removed_or_exchanged(perturb: str, number: int, expected: list[int]) -> None:
    record = painted(0)._replace(captions=("Short.",), long=" ".join(PARAGRAPH[:number]), others=("No.",))
    source = Perturbed(InMemory([record]), perturb, "whole")
    assert source[0].whole == " ".join(PARAGRAPH[i] for i in expected)
    assert source.unchanged == ({0} if number == 1 else set())
    assert Perturbed(InMemory([record]), perturb, "first")[0] == record, "the first caption is one sentence"


# the command


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(read_recipe(recipe(folder), []), folder / "run")
    return folder / "run"


def test_the_card_stands_in_table_page_and_json(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    paths = iiw(tmp_path)
    out = ("--json", tmp_path / "r.json", "--html", tmp_path / "r.html")
    asked = ("evaluate", trained, "--suite", "long-retrieval", "--images", tmp_path)
    assert call(*asked, "--data", *paths, *out) == 0
    shown, page = capsys.readouterr().out, (tmp_path / "r.html").read_text()
    result = read(tmp_path / "r.json")
    assert (result.suite, result.protocol) == ("long-retrieval", "iiw")
    for name, said in result.settings["card"].items():
        assert said in shown
        assert said.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;") in page, name
    assert "protocol iiw" in shown
    assert "Text to image, best to worst" in page
    assert call(*asked, "--data", *paths, "--compare-to", tmp_path / "r.json") == 0
    assert "compared to" in capsys.readouterr().out
    line = complaint(
        capsys, *asked, "--data", *paths, "--set", "protocol=plain", "--compare-to", tmp_path / "r.json"
    )
    assert "r.json has protocol iiw, this result plain: they cannot be compared" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "protocol=sv-1k"), "reads the files of SV-1k (ShareGPT4V), and scenes:dev?count=4 is not"),
        (("--set", "protocol=docci-fg", "perturb=swapped"), "docci-fg has single ones"),
        (("--captions", "each"), "--captions is 'each'; long-retrieval reads one text an image"),
    ],
)
def test_wrong_options_are_one_line(
    options: tuple[str, ...], said: str, trained: Path, capsys: Capture
) -> None:
    asked = ("evaluate", trained, "--data", "scenes:dev?count=4", "--suite", "long-retrieval", *options)
    assert said in complaint(capsys, *asked)


# the real files


def test_the_real_files_are_as_they_were_described(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "benchmarks"
    files = [folder / "imageinwords" / part / "data.jsonl" for part in ("IIW-400", "DCI_Test", "DOCCI_Test")]
    city = folder / "urban1k" / "annotations.json"
    if not all(file.is_file() for file in (*files, city)):
        pytest.skip(f"no ImageInWords or Urban-1k below {folder}")
    images(tmp_path, ["aar_test_04600.jpg", "sa_1545038.jpg", "test_00731.jpg", "1.jpg"])
    whole, card = under(open_sources([str(file) for file in files], images=str(tmp_path)))
    assert (card.protocol, len(whole), card.pairs) == ("iiw", 612, 612)
    assert [whole[i].key for i in (0, 400, 512)] == ["aar_test_04600", "sa_1545038.jpg", "test_00731"]
    assert isinstance(whole, Joined)
    read_as = [one._rule.text(one._source.text(i)) for one in whole.sources for i in range(len(one))]  # type: ignore[attr-defined]
    assert round(mean_pieces(read_as), 2) == 10.16, "Table 6 of CAFT"
    single, _ = under(open_sources([str(file) for file in files], images=str(tmp_path)), "iiw-fg")
    assert isinstance(single, Joined)
    pieces = [piece for named in read_as for piece in named.split(". ") if len(piece) > 2]
    assert len(pieces) == 6204, "captions in FLAIR's own file"
    assert len(single.sources[0][0].captions) == read_as[0].count(". ") + 1
    streets, card = under(open_source(str(city), images=str(tmp_path)))
    assert (card.protocol, len(streets), card.pairs) == ("urban-1k", 1000, 1000)
    read_as = [streets._rule.text(streets._source.text(i)) for i in range(1000)]  # type: ignore[attr-defined]
    assert sum(not named for named in read_as) == 1
    assert round(mean_pieces([named for named in read_as if named]), 2) == 5.97, "Table 6 of CAFT"


def mean_pieces(texts: list[str]) -> float:
    """How many pieces `. ` cuts a text into, on average."""
    return sum(len([piece for piece in named.split(". ") if piece.strip()]) for named in texts) / len(texts)
