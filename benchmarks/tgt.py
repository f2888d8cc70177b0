"""Do the groups of the Text Group Transformer find phrases, or only places? Trained and measured, five seeds.

    GRAINLINE_DATA=... python -m benchmarks.tgt OUT [--minutes 90] [--jobs 2] [--longer 1]
    GRAINLINE_DATA=... python -m benchmarks.tgt OUT --probe                     # one seed
    GRAINLINE_DATA=... python -m benchmarks.tgt OUT --probe --seeds 3 --only scenes-full scenes-minimal

Three sets. `captions`: captions of Flickr30k alone, each said again from its groups; no image. `scenes` and
`flickr8k`: the full model, with an image encoder that learns along. All phrases of `scenes` are true ones. No
phrases of Flickr are at hand that people marked, so those of held-out captions of Flickr8k are found by the
rules of `grainline.data.phrases` (its quality: docs/phrases.md) and written as files of Flickr30k Entities.

`--probe` asks why groups find no phrases where images are compared too: it changes one thing at a time.

Runs resume, and OUT/runs.jsonl gets a line for each. Settings stand in the order of their worth, all seeds of
one together; those that found no time are named at the end. Tables and figure: benchmarks/tgt_tables.py.
"""

import json
import tarfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.study import SECONDS, Folder, arguments, data_folder, work
from grainline.data.phrases.providers import Rules
from grainline.methods.tgt import UNSEEN
from grainline.training.recipe import read_recipe

SCENES = 8000  # images to train on
BATCH = 64
STEPS = {"captions": 600, "scenes": 250, "flickr8k": 300}
SHOWN = 500  # scenes whose phrases and foils are asked for
MARKED = 500  # images of Flickr8k whose captions have phrases found by rules
SIZES: dict[str, tuple[str, ...]] = {  # of the encoders, where the recipe is for more time
    "captions": (),
    "scenes": (),
    "flickr8k": (
        "model.text={groups: 4, width: 128, depth: 2, later: 1, heads: 4, vocab: 2048, context: 77}",
        "model.image={width: 128, depth: 3, heads: 4, patch: 16, size: 112, stem: conv, pool: mean}",
        "model.width=128",
    ),
}
GROUPS = (1, 2, 8, 16)  # beside 4
NO_DECODER = ("model.reconstruction=0",)
NO_CONTRAST = (
    "model.contrastive=0",
    f"train.optimizer.rules=[{{pattern: '{UNSEEN}', lr: 0}}, {{pattern: '.*'}}]",
)
ONE_VECTOR = (  # the baseline: two layers more have as many weights as the block
    "model.text={width: 128, depth: 5, heads: 4, vocab: 1024, context: 192}",
)
CROPS, PLACES = "data.texts.word_crop=0.5", "model.text.position_dropout=0.5"
BY_LENGTH = ("model.text.groups=8", "model.text.tokens_per_group=4")


ALONE = "no-contrastive"  # what reconstruction-first begins with


class Setting(NamedTuple):
    """One way to train on one set."""

    data: str
    name: str
    changes: tuple[str, ...] = ()
    longer: int = 1  # times the steps of the set

    @property
    def key(self) -> str:
        return f"{self.data}-{self.name}"


SETTINGS = [
    Setting("captions", "reconstruction"),
    Setting("captions", "untrained"),
    Setting("captions", "crops", (CROPS,)),
    Setting("captions", "places", (PLACES,)),
    Setting("captions", "by-length", BY_LENGTH),
    *(Setting("captions", f"k{k}", (f"model.text.groups={k}",)) for k in GROUPS[1:3]),
    Setting("scenes", "full"),
    Setting("scenes", "no-reconstruction", NO_DECODER),
    Setting("scenes", "baseline", ONE_VECTOR),
    Setting("flickr8k", "full"),
    Setting("flickr8k", "no-reconstruction", NO_DECODER),
    Setting("captions", "k16", ("model.text.groups=16",)),
    Setting("scenes", "no-contrastive", NO_CONTRAST),
    Setting("captions", "both", (CROPS, PLACES)),
    *(Setting("scenes", f"k{k}", (f"model.text.groups={k}",)) for k in GROUPS),
    Setting("scenes", "both", (CROPS, PLACES)),
]
"""Without images, one group need not be trained: it takes all tokens, whatever it has learnt."""

PROBES = [
    Setting(data, name, changes, longer)
    for data in ("scenes", "flickr8k")
    for name, changes, longer in (
        ("full", (), 1),
        (ALONE, NO_CONTRAST, 1),  # captions alone, at equal length
        ("minimal", ("model.text.form=minimal",), 1),
        ("mean-captions", ("model.mean=captions",), 1),
        ("tenth-rate", ("train.optimizer.lr=1.0e-4",), 1),
        ("reconstruction-first", (), 1),  # it goes on from ALONE with both losses and as many steps again
        ("twice", (), 2),  # as many steps as reconstruction-first has in all
    )
]
"""Each changes one thing of `full`."""


class Fivefold(Folder):
    """The folder of all runs."""

    seeds = (0, 1, 2, 3, 4)

    def steps(self, setting: Setting) -> int:
        """Of every run of a setting."""
        return 1 if setting.name == "untrained" else STEPS[setting.data] * self.longer * setting.longer

    def sources(self, name: str) -> list[Path]:
        if name == "captions":
            return [Path(f"texts:{self.out / 'captions.jsonl.gz'}")]  # a kind of source and its path
        return super().sources(name)

    @property
    def silver(self) -> Path:
        """Where the phrases of Flickr8k stand that rules find."""
        return self.out / "silver"

    def texts(self) -> None:
        """Captions to train on, and those whose phrases are found by rules; once."""
        if not (self.out / "captions.jsonl.gz").is_file():
            packed = self.data / "text" / "flickr30k_train_captions.jsonl.gz"
            (self.out / "captions.jsonl.gz").write_bytes(packed.read_bytes())
        if not (self.silver / "val.txt").is_file():
            mark(self.data / "flickr8k" / "dev-0000.tar", self.silver, MARKED)


def mark(tar: Path, out: Path, images: int) -> None:
    """Files of Flickr30k Entities with the noun phrases that rules find in the captions of a tar's first."""
    rules = Rules()
    names: list[str] = []
    (out / "Sentences").mkdir(parents=True, exist_ok=True)
    with tarfile.open(tar) as file:
        for member in file:
            if not member.name.endswith(".json") or len(names) == images:
                continue
            opened = file.extractfile(member)
            assert opened is not None
            name = Path(member.name).stem
            lines = [marked(text, rules) for text in json.load(opened)["captions"]]
            (out / "Sentences" / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
            names.append(name)
    (out / "val.txt").write_text("\n".join(names), encoding="utf-8")


def marked(text: str, rules: Rules) -> str:
    """A caption with brackets around its noun phrases.

    >>> marked("A dog runs over wet sand .", Rules())
    '[/EN#1/other A dog] runs over [/EN#2/other wet sand] .'
    """
    found = sorted((p.start, p.end) for p in rules.phrases(text) if p.kind == "noun")
    out, at = "", 0
    for number, (start, end) in enumerate(found, 1):
        out += f"{text[at:start]} [/EN#{number}/other {text[start:end]}] "
        at = end
    return " ".join((out + text[at:]).split())


def run(folder: Fivefold, setting: Setting, seed: int) -> None:
    """Train and measure one run."""
    key = f"{setting.key}-{seed}"
    place = folder.train(key, recipe(folder, setting, seed), setting.data)
    told: dict[str, list[float]] = {}
    for name, (data, *asked) in measurements(folder, setting).items():
        found = folder.measure(key, name, data, *asked)
        told |= {f"{name} {metric}": value for metric, value in found.items()}
    folder.add(
        {
            "run": key, "setting": setting.name, "data": setting.data, "seed": seed,
            "pairs": folder.steps(setting) * BATCH,
            "trained_s": float((place / SECONDS).read_text()), "metrics": told, "log": last_log(place),
        }
    )  # fmt: skip


def last_log(place: Path) -> dict[str, float]:
    """Losses and facts about the groups in the last line of training: means over its last steps."""
    lines = map(json.loads, (place / "log.jsonl").read_text(encoding="utf-8").splitlines())
    last = [line for line in lines if line["kind"] == "train"][-1]
    return {**last["terms"], **last.get("facts", {})}


def measurements(folder: Fivefold, setting: Setting) -> dict[str, tuple[str, ...]]:
    """Names of measurements, each with its source and the arguments of the command that makes it."""
    shown = f"scenes:dev?count={SHOWN}&size=64"
    silver = f"flickr30k-entities:{folder.silver}?split=val"
    if setting.data == "scenes":
        return {
            "phrases on scenes": (shown, "--suite", "phrases"),
            "probes on scenes": (shown, "--suite", "probes"),
            "retrieval on scenes": (str(folder.held_out("scenes")), "--suite", "retrieval"),
        }
    out: dict[str, tuple[str, ...]] = {f"phrases on {setting.data}": (silver, "--suite", "phrases")}
    if setting.data == "flickr8k":
        held = str(folder.data / "flickr8k" / "dev-0000.tar")
        out["retrieval on flickr8k"] = (held, "--suite", "retrieval", "--captions", "each")
    return out


def recipe(folder: Fivefold, setting: Setting, seed: int) -> Path:
    """The recipe of a run, as a file."""
    changes = [*SIZES[setting.data], *setting.changes]
    values = read_recipe(f"tgt/{setting.data}", changes).model_dump(mode="json")
    train = {"max_steps": folder.steps(setting), "global_batch_size": BATCH, "seed": seed}
    if setting.name == "reconstruction-first":
        first = next(s for s in PROBES if (s.data, s.name) == (setting.data, ALONE))
        key = f"{first.key}-{seed}"
        values["begin"] = str(folder.train(key, recipe(folder, first, seed), setting.data).resolve())
    return folder.recipe(f"{setting.key}-{seed}", values, **train)


def main() -> None:
    args = arguments(__doc__, "probe", longer=1, seeds=0)
    folder = Fivefold(args.out, data_folder(), args.longer)
    folder.seeds = tuple(range(args.seeds or (1 if args.probe else len(folder.seeds))))
    folder.draw(SCENES)
    folder.texts()
    work(folder, PROBES if args.probe else SETTINGS, run, args)


if __name__ == "__main__":
    main()
