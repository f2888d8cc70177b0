"""Losses of 20 training steps of every shipped recipe, made small, to compare two versions bit for bit.

    python tests/same_losses.py --compare-to main      # this tree and a commit, side by side
    python tests/same_losses.py --write before.jsonl
    python tests/same_losses.py --compare before.jsonl

Every recipe of the package becomes a tiny one: towers of width 32, images of 32 pixels, a batch of 16 drawn
scenes, checkpoints of the transformers library made here with random weights. Recipes that are the same
afterwards are one case, named by the first of them. A case holds the loss and the gradient norm of every
step and a hash of the final weights that does not depend on their names. Recipes from scratch are also built
on the `meta` device at their true sizes, and the shapes of their weights are compared.

One thread and fixed seeds. Numbers are equal only on one kind of machine with one version of torch, so none
are stored here. Everything that names modules, recipe fields or files of a run stands in the first section.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

HERE = Path(__file__).resolve().parent.parent
STEPS = 20
Values = dict[str, Any]

# What a renaming touches: modules of grainline, recipe fields, files of a run.

RECIPES = "grainline/recipes"  # in the tree
RENAMED: dict[str, str] = {}  # recipes that have another name than in the commit to compare with: new, old
BEGINS = {"tgt/pretrained_start": "tgt/baseline", "tgt/vision_finetuning": "tgt/paper"}
"""Recipes that begin with the weights of a run, and the recipe whose shrunken run they begin with here."""

FAMILIES = {
    "openai/clip": "clip", "google/siglip": "siglip", "google/vit": "vit", "microsoft/swin": "swin",
    "google-bert/": "bert", "nvidia/groupvit": "groupvit",
    "pip:efficientnet": "vit", "pip:all-minilm": "bert",
}  # fmt: skip
VIT = {"width": 32, "depth": 2, "heads": 2, "patch": 8, "size": 32}
CAST = {"width": 32, "depths": [1, 1, 1, 1], "heads": 2, "size": 32, "stride": 2, "groups": [16, 8, 4]}
TEXT = {"width": 32, "depth": 2, "heads": 2, "vocab": 600, "context": 48}
DATA = {"paths": ["scenes:train?count=40"], "tokenizer_samples": 40, "workers": 0}
TRAIN = {"max_steps": STEPS, "global_batch_size": 16, "log_every": 1, "save_every": STEPS}
RATES = {"lr": 2e-4, "weight_decay": 0.1, "betas": [0.9, 0.98], "eps": 1e-8}


def shrunk(recipe: Values, checkpoints: Path) -> Values:
    """A whole recipe with all its options and small sizes.

    checkpoints  a folder with small checkpoints by family
    """
    model, data, train = (dict(recipe.get(part, {})) for part in ("model", "data", "train"))
    both = model.pop("pretrained", None)
    sides = {side: ({"pretrained": both} if both else {}) | model.get(side, {}) for side in ("image", "text")}
    model |= {"image": _image(sides["image"], checkpoints), "text": _text(sides["text"], checkpoints)}
    at_most(model, {"width": 32, "group": 4, "heads": 2, "sentences": 8})
    at_most(model.get("others") or {}, {"sentences": 3, "phrases": 4})
    if recipe["method"] == "caft":
        model["composer"] = model.get("composer", {}) | {"depth": 1, "heads": 2}
    texts = data["texts"] = dict(data.get("texts", {}))
    at_most(texts, {"sentences": 3})
    if "phrases" in texts:
        at_most(texts["phrases"], {"max_phrases": 4})
        texts["phrases"].pop("provider", None)  # one that needs no further package
    if recipe["method"] == "seps" and model.get("branches") != "sparse":
        data["descriptions"] = ["long"]
    at_most(train, {"grad_accum": 2, "grad_cache_chunk": 4})
    train.setdefault("precision", "fp32")  # "auto" depends on the machine
    optimizer = train["optimizer"] = train.get("optimizer", {}) | RATES
    for part in (optimizer, *optimizer.get("rules", [])):
        schedule = part.get("schedule") or {}
        at_most(schedule, {"warmup": 4})
        if "milestones" in schedule:
            schedule["milestones"] = [5, 10, 15]
    return recipe | {"model": model, "data": data | DATA, "train": train | TRAIN}


def _image(side: Values, checkpoints: Path) -> Values:
    name = side.pop("name", "") if "pretrained" not in side else ""
    for field in ("mean", "std"):
        side.pop(field, None)
    if "pretrained" in side:
        return side | {"pretrained": _family(side, checkpoints)}
    if "superpixels" in side or (name and "/" not in name):
        return side | CAST | {"superpixels": side.get("superpixels", {}) | {"cell": 4}}
    return side | VIT


def _text(side: Values, checkpoints: Path) -> Values:
    side.pop("name", None)
    at_most(side, {"context": TEXT["context"], "frozen_positions": 5, "later": 1})
    return side | ({"pretrained": _family(side, checkpoints)} if "pretrained" in side else TEXT)


def _family(side: Values, checkpoints: Path) -> str:
    return str(checkpoints / next(f for name, f in FAMILIES.items() if side["pretrained"].startswith(name)))


def begun(recipe: Values, folder: str) -> Values:
    """The recipe with the weights of a run to begin with."""
    return recipe | {"init_from": folder}


def write_tokenizer(folder: Path, texts: list[str], size: int) -> dict[str, int]:
    """A tokenizer like CLIP's into a folder; what the config of a text model says about it."""
    from grainline.data.tokenizers.tokenizer import Tokenizer

    made = Tokenizer.train(texts, size)
    made.save(folder)
    return {"vocab_size": made.vocab, "bos_token_id": made.begin, "eos_token_id": made.end}


def shapes_on_meta(name: str) -> list[tuple[int, ...]] | None:
    """Shapes of the weights of a shipped recipe at its true sizes; None where it needs a checkpoint."""
    from grainline.build import build
    from grainline.training.recipe import read_recipe

    description = read_recipe(name, []).description
    if "pretrained" in json.dumps(description.config.model_dump(mode="json", exclude_none=True)):
        return None
    with torch.device("meta"):
        return [tuple(x.shape) for x in build(description).state_dict().values()]


def logged(out: Path) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step in the folder of a run."""
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [(line["terms"]["loss"], line["norm"]) for line in lines if line["kind"] == "train"]


def last_weights(out: Path) -> Path:
    """The file with the final weights in the folder of a run."""
    return out / "last" / "model.safetensors"


# Cases


def at_most(values: Values, limits: dict[str, int]) -> None:
    """Lower the numbers among the values, in place."""
    values |= {k: min(values[k], limit) for k, limit in limits.items() if values.get(k) is not None}


def names(tree: Path) -> list[str]:
    """The recipes that ship with a tree."""
    folder = tree / RECIPES
    return [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")]


def whole(folder: Path, name: str) -> Values:
    """A recipe with the fields of its bases, as the file says them."""
    values = yaml.safe_load((folder / f"{name}.yaml").read_text())
    return merged(whole(folder, values.pop("base")), values) if "base" in values else values


def merged(values: Values, changes: Values) -> Values:
    """Values with others over them, field by field."""
    out = dict(values)
    for name, value in changes.items():
        old = out.get(name)
        out[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def cases(tree: Path, checkpoints: Path) -> dict[str, Values]:
    """The distinct shrunken recipes by name; those that begin with another run come last."""
    order = sorted(names(tree), key=lambda name: (name in BEGINS, name.count("/"), RENAMED.get(name, name)))
    results: dict[str, tuple[str, Values]] = {}
    for name in order:
        values = shrunk(whole(tree / RECIPES, name), checkpoints)
        results.setdefault(json.dumps(values, sort_keys=True), (name, values))
    return dict(results.values())


def write_checkpoints(folder: Path) -> None:
    """A small checkpoint with random weights of each family, as the transformers library writes it."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for family in FAMILIES.values():
        torch.manual_seed(0)
        _checkpoint(transformers, family, folder / family).save_pretrained(folder / family)


def _checkpoint(library: Any, family: str, folder: Path) -> Any:
    """A model of a family; its tokenizer, if it reads texts, is written into the folder."""
    side = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    image = side | {"image_size": 32, "patch_size": 8}
    if family == "vit":
        return library.ViTModel(library.ViTConfig(**image))
    if family == "swin":
        sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4]}
        return library.SwinModel(library.SwinConfig(**sizes, window_size=4))
    words = ["red", "dog", "the", "old", "green", "tree", "stands", "by", "small", "blue", "house"]
    text = side | {"max_position_embeddings": 24, "pad_token_id": 0}
    if family == "bert":  # a vocabulary with a mask
        marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{i}]" for i in range(200))]
        letters = [mark + chr(ord("a") + i) for mark in ("", "##") for i in range(26)]
        vocabulary = {word: i for i, word in enumerate([*marks, *letters, ".", ",", *words])}
        library.BertTokenizerFast(vocab=vocabulary).save_pretrained(folder)
        return library.BertModel(library.BertConfig(**text, vocab_size=len(vocabulary)))
    text |= write_tokenizer(folder, [" ".join(words)] * 2, 556)
    if family == "siglip":
        text |= {"projection_size": 32, "pad_token_id": 1}
        return library.SiglipModel(library.SiglipConfig(vision_config=image, text_config=text))
    own = {"text_config": text, "projection_dim": 24}
    if family == "clip":
        return library.CLIPModel(library.CLIPConfig(**own, vision_config=image))
    image |= {"depths": [1, 1, 3], "num_group_tokens": [6, 3, 0], "num_output_groups": [6, 3, 0]}
    own["projection_intermediate_dim"] = 40
    return library.GroupViTModel(library.GroupViTConfig(**own, vision_config=image))


def trained(recipe: Values, out: Path) -> Values:
    """Train by the command line, in this process; what the run says."""
    out.mkdir(parents=True)
    file, said = out / "case.yaml", io.StringIO()
    file.write_text(yaml.safe_dump(recipe))
    sys.argv = ["grainline", "train", str(file), "--out", str(out / "run")]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_module("grainline", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    if code:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    losses, norms = zip(*logged(out / "run"), strict=True)
    return {
        "losses": [x.hex() for x in losses],
        "norms": [x.hex() for x in norms],
        "weights": weights_hash(last_weights(out / "run")),
    }


def weights_hash(file: Path) -> str:
    """A hash of the tensors of a safetensors file: type, shape and bytes, whatever their names and order."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    hashes = []
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, behind = (start + offset for offset in entry["data_offsets"])
            about = f"{entry['dtype']} {entry['shape']}".encode()
            hashes.append(hashlib.sha256(about + data[first:behind]).hexdigest())
    return hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()


def run(tree: Path, only: str) -> Iterator[Values]:
    """All cases of a tree whose name contains a text, one after the other."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        write_checkpoints(work / "checkpoints")
        for name, values in cases(tree, work / "checkpoints").items():
            needed = only in name or any(only in later for later, base in BEGINS.items() if base == name)
            if not needed:
                continue
            since = time.perf_counter()
            recipe = begun(values, str(work / BEGINS[name] / "run")) if name in BEGINS else values
            result = {"case": RENAMED.get(name, name)} | trained(recipe, work / name)
            end = result.get("error") or float.fromhex(result["losses"][-1])
            print(f"{name:40} {time.perf_counter() - since:5.1f} s  {end}", file=sys.stderr)
            yield result
        for name in sorted(names(tree)):
            if only in name and (shapes := shapes_on_meta(name)) is not None:
                digest = hashlib.sha256(json.dumps(sorted(shapes)).encode()).hexdigest()
                yield {"case": f"{RENAMED.get(name, name)} on meta", "weights": digest}


# Comparing


def differences(here: list[Values], there: list[Values]) -> list[str]:
    """One line for each case that only one side has, or that differs."""
    ours, theirs = ({one["case"]: one for one in side} for side in (here, there))
    lines = [f"{case}: only there" for case in theirs if case not in ours]
    for case, own in ours.items():
        other = theirs.get(case)
        if other is None:
            lines.append(f"{case}: only here")
        elif "error" in own or "error" in other:
            lines.append(f"{case}: {own.get('error')} / {other.get('error')}")
        elif own != other:
            pairs = zip(own.get("losses", []), other.get("losses", []), strict=False)
            steps = [step for step, (a, b) in enumerate(pairs, start=1) if a != b]
            what = f"losses from step {steps[0]} on" if steps else "norms or final weights"
            lines.append(f"{case}: {what} differ")
    return lines


def elsewhere(commit: str, only: str) -> list[Values]:
    """The cases of another commit, by its own copy of this script if it has one."""
    with tempfile.TemporaryDirectory() as temporary:
        tree, file = Path(temporary) / "tree", Path(temporary) / "cases.jsonl"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            own = tree / "tests" / Path(__file__).name
            script = [str(own)] if own.exists() else [__file__, "--tree", str(tree)]
            command = [sys.executable, *script, "--write", str(file), "--only", only]
            subprocess.run(command, check=False, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)})
            return read(file)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def read(file: Path) -> list[Values]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--compare-to", metavar="COMMIT", help="run this commit too, and compare")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the cases as JSON lines")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with such a file")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this text in their name")
    parser.add_argument("--tree", type=Path, default=HERE, metavar="FOLDER", help="run this checkout")
    asked = parser.parse_args()
    sys.path.insert(0, str(asked.tree.resolve()))
    import grainline

    assert Path(grainline.__file__).is_relative_to(asked.tree.resolve()), grainline.__file__
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    since = time.perf_counter()
    result = list(run(asked.tree.resolve(), asked.only))
    wrong = [f"{one['case']}: {one['error']}" for one in result if "error" in one]
    print(f"{len(result)} cases in {time.perf_counter() - since:.0f} s", file=sys.stderr)
    if asked.write:
        asked.write.write_text("".join(json.dumps(one) + "\n" for one in result))
    if asked.compare_to:
        wrong = differences(result, elsewhere(asked.compare_to, asked.only))
    if asked.compare:
        ours = {one["case"] for one in result}
        wrong += differences(result, [x for x in read(asked.compare) if not asked.only or x["case"] in ours])
    print("\n".join(wrong) if wrong else "all equal" if asked.compare_to or asked.compare else "")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
