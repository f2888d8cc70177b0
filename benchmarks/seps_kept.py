"""What the patches are that trained models keep of scenes: drawn things, or background?

    python -m benchmarks.seps_kept OUT [--scenes 200]

OUT is a study of benchmarks/seps.py. Settings that were trained on scenes with all seeds are asked about
held-out scenes: what share of the pixels of drawn things lies in patches that stay for the caption and for
the description, beside the share of all pixels, which is what chance keeps; whether other patches stay for
the caption of another scene; how many words find the token of what is dropped; and how many tokens the words
of a caption find. The square of the model is the scene, so that masks lie on it as they are.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.seps import SETTINGS, Threefold
from grainline import load
from grainline.data.open_source import open_sources
from grainline.data.record import Record
from grainline.evaluation.show_panels import selection_of
from grainline.model import Model
from grainline.nn.patch_selection.selector import REST, SelectsPatches


class Found(NamedTuple):
    """Of one scene; shares in 0..1."""

    kept: float  # pixels in patches that stay for the caption
    things: float  # pixels of drawn things in them
    described: float  # pixels of drawn things in patches that stay for the description
    other: float  # patches that stay for the caption of another scene as well, of those that stay
    rest: float  # words that find the token of what is dropped
    tokens: float  # a number: tokens that words find


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--scenes", type=int, default=200)
    args = parser.parse_args()
    folder = Threefold(args.out, args.out, 1)
    source = open_sources([str(folder.held_out("scenes"))])
    records = [source[i] for i in range(min(args.scenes, len(source)))]
    print(
        "| setting | of things, for the caption | of things, for the description | of all pixels |"
        " also for another caption | words that find the rest | tokens found |"
    )
    print("|---|---|---|---|---|---|---|")
    for setting in (one for one in SETTINGS if one.data == "scenes"):
        runs = [folder.out / "runs" / f"{setting.key}-{seed}" for seed in folder.seeds]
        if not all((run / "last").exists() for run in runs):
            continue
        models = [load(run, device="cpu") for run in runs]
        if isinstance(models[0].method, SelectsPatches):
            print(row(setting.name, [asked(model, records) for model in models]), flush=True)


def row(name: str, seeds: Sequence[Found]) -> str:
    """Means over the seeds, with the least and the greatest of them."""

    def ends(field: str, by: float, digits: int, unit: str) -> str:
        values = [by * getattr(one, field) for one in seeds]
        if any(value != value for value in values):
            return ""
        mean = sum(values) / len(values)
        return f"{mean:.{digits}f}{unit} ({min(values):.{digits}f} to {max(values):.{digits}f})"

    shares = [ends(name, 100, 0, " %") for name in ("things", "described", "kept", "other", "rest")]
    return f"| {name} | {' | '.join([*shares, ends('tokens', 1, 1, '')])} |"


@torch.no_grad()
def asked(model: Model, records: Sequence[Record]) -> Found:
    """Means over scenes, each with its own caption and that of the next one."""
    later = [*records[1:], records[0]]
    found = torch.tensor([one(model, *both) for both in zip(records, later, strict=True)])
    return Found(*found.mean(0).tolist())


def one(model: Model, record: Record, other: Record) -> Found:
    """What stays of a scene."""
    description = record.long if model.method.reads_descriptions else None
    square = model.cropped(record.image)
    kept = selection_of(model, square, [record.captions[0], other.captions[0]], description)
    things = drawn(record)
    by_text, by_description = kept.by_text, kept.by_description
    if by_text is None:
        assert by_description is not None, "texts or descriptions choose"
        share, covered, same = by_description[0].float().mean().item(), float("nan"), float("nan")
    else:
        share, covered = by_text[0].float().mean().item(), inside(model, by_text[0], things)
        same = (by_text[0] & by_text[1]).sum().item() / by_text[0].sum().item()
    described = float("nan") if by_description is None else inside(model, by_description[0], things)
    words = kept.token[0][kept.words[0]]
    rest = torch.tensor([kind == REST for kind in kept.kind])[words].float().mean().item()
    return Found(share, covered, described, same, rest, float(len(words.unique())))


def drawn(record: Record) -> Tensor:
    """Which pixels belong to a drawn thing: [H, W] bool"""
    masks = [torch.from_numpy(region.mask) for region in record.regions if region.mask is not None]
    return torch.stack(masks).any(0)


def inside(model: Model, patches: Tensor, pixels: Tensor) -> float:
    """The share of pixels [H, W] in patches [L] bool."""
    rows, columns = model.method.grid or (1, 1)
    height, width = pixels.shape
    laid = patches.view(rows, columns).repeat_interleave(height // rows, 0)
    return (laid.repeat_interleave(width // columns, 1) & pixels).sum().item() / pixels.sum().item()


if __name__ == "__main__":
    main()
