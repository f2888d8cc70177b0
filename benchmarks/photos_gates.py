"""Pretrained pairs of towers on photographs: trained with several seeds, and measured on Flickr8k dev.

    GRAINLINE_DATA=... python -m benchmarks.photos_gates OUT [--only text frozen] [--seeds 0 1 2]
        [--set train.max_steps=4 ...] [--train train-000[01].tar --dev train-0002.tar]

Each setting is a recipe with changes. OUT/gates.jsonl gets a line for every run: rSum and R@1 of single
captions, and of all captions of an image as one query, read as one vector (`whole`) and sentence by sentence
(`sentences`), with the seconds of training and of measuring. The means stand at the end. A run that has its
line is not made again; settings come in the order of --only, all seeds of one together.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import grainline
from benchmarks.study import data_folder
from grainline.data.open_source import open_data
from grainline.distributed import usable_cores
from grainline.evaluation.encode import Encodings, encode_source
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.retrieval import I2T, T2I, RetrievalSuite
from grainline.loading import default_device, load

CROP = "data.crop={scale: [0.65, 1.0], ratio: [0.85, 1.18], flip: true}"
VIEWS = (
    *("photos/starter", "data.views=8", "data.workers=8", CROP),
    *("model.dropout=0.4", "train.optimizer.lr=1e-3"),
)
JOINED = (  # beside captions some of them joined, each text read as one
    "data.texts={captions: random, per_image: 2, sampled_captions: 2, max_sentences_per_chunk: 5}",
    "model.scoring=whole",
)
TEXT = "model.text.tune=all", "model.text.rate=0.05", "train.max_steps=460"
SETTINGS: dict[str, tuple[str, ...]] = {
    "cached": ("photos/starter",),
    "frozen": (*VIEWS, "train.max_steps=1000"),
    "text": (*VIEWS, *TEXT),
    "text_joined": (*VIEWS, *TEXT, *JOINED),
    "both": ("photos/starter_tuned",),
    "both_joined": ("photos/starter_tuned", *JOINED),
}
"""Recipe and changes of each setting: two cores, then a GPU."""
GATES = {  # rSum at least: single captions, joined ones by the better way
    "cached": (285.0, 350.0),
    "frozen": (305.0, 375.0),
    "text": (335.0, 425.0),
}


def device_name() -> str:
    """The accelerator, or how many cores."""
    device = default_device()
    return torch.cuda.get_device_name() if device == "cuda" else f"{device}, {usable_cores()} cores"


def measure(weights: Path, dev: Path) -> dict[str, float]:
    """rSum and R@1 both ways; images are encoded once, texts each, whole and by sentences."""
    model = load(weights, scoring="whole")
    source = open_data(str(dev), size=model.method.size)
    single = encode_source(model, source, captions="each")
    ways: dict[str, tuple[Any, Encodings]] = {"single": (model, single)}
    for way in ("whole", "sentences"):
        reader = load(weights, scoring=way)
        texts = encode_source(reader, source, captions="whole", encode_images=False)
        ways[way] = reader, texts._replace(images=single.images)
    out = {}
    for way, (reader, data) in ways.items():
        result = RetrievalSuite().measure(reader.method, data, Settings(resamples=2))
        names = {"rsum": "rSum", "i2t": f"{I2T} R@1", "t2i": f"{T2I} R@1"}
        out |= {f"{way} {short}": result.metric(name).value for short, name in names.items()}
    return out


def train(setting: str, seed: int, out: Path, sources: list[str], changes: list[str]) -> Path:
    """The folder of the last weights of a run."""
    recipe, *own = SETTINGS[setting]
    last = [f"data.paths={json.dumps(sources)}", f"train.seed={seed}", "train.save_every=1000000"]
    return grainline.train(recipe, out / f"{setting}-{seed}", changes=[*own, *changes, *last])


def table(lines: list[dict[str, Any]]) -> str:
    """The means of every setting over its seeds, with the gates."""
    rows = [
        "| setting | seeds | single | whole | sentences | seconds | gate |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in dict.fromkeys(line["setting"] for line in lines):
        of = [line for line in lines if line["setting"] == setting]
        keys = ("single rsum", "whole rsum", "sentences rsum", "train_s")
        mean = {key: statistics.mean(line[key] for line in of) for key in keys}
        verdict = ""
        if setting in GATES:
            single, joined = GATES[setting]
            reached = mean["single rsum"] >= single, max(mean["whole rsum"], mean["sentences rsum"]) >= joined
            verdict = f"{single:g}, {joined:g}: {'holds' if all(reached) else 'fails'}"
        values = " | ".join(f"{mean[key]:.1f}" for key in keys)
        rows.append(f"| {setting} | {len(of)} | {values} | {verdict} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], help="changes of every recipe: train.max_steps=4")
    parser.add_argument("--train", nargs="*", help="tars to train on; default: Flickr8k train")
    parser.add_argument("--dev", type=Path, help="a tar to measure on; default: Flickr8k dev")
    args = parser.parse_args()
    data = data_folder() / "flickr8k"
    sources = args.train or sorted(map(str, data.glob("train-*.tar")))
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "gates.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    for setting in args.only:
        for seed in args.seeds:
            if any((line["setting"], line["seed"]) == (setting, seed) for line in lines):
                continue
            start = time.monotonic()
            weights = train(setting, seed, args.out, sources, args.set)
            trained = time.monotonic()
            found = measure(weights, args.dev or data / "dev-0000.tar")
            spent = {"train_s": trained - start, "measure_s": time.monotonic() - trained}
            about = {"setting": setting, "seed": seed, "device": device_name()}
            lines.append(about | {name: round(x, 2) for name, x in (found | spent).items()})
            with file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(lines[-1]) + "\n")
            print(json.dumps(lines[-1]), flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
