"""Numbers of papers for the protocols that suites measure, as published: nobody has measured them here."""

from collections.abc import Iterable

from grainline.data.benchmarks.phrase_regions import DIFFICULTY
from grainline.evaluation.comparison import Published

HIMO_LONG, HIMO_SHORT = "HiMo-CLIP, arXiv 2511.06653, Table 1", "HiMo-CLIP, arXiv 2511.06653, Table 2"
CAFT = "CAFT, arXiv 2602.02977, Table 1"
BETA = "beta-CLIP, arXiv 2512.12678, Table 1"

BOTH_WAYS = "image to text R@1", "text to image R@1"
BY_KIND = tuple(f"accuracy, {kind}" for kind in DIFFICULTY.values())

# Rows of numbers for protocols, with a slash between those of one protocol; all models are ViT-B/16.
NUMBERS = {
    (HIMO_LONG, "urban-1k docci long-dci"): """
        CLIP 68.1/53.6 58.5/58.2 35.0/33.1
        Long-CLIP 78.9/79.5 63.2/71.5 42.2/48.4
        TULIP 88.1/86.6 75.5/75.8 50.2/50.6
        HiMo-CLIP 89.2/89.6 77.8/79.9 58.6/57.1""",
    (HIMO_SHORT, "flickr30k-1k coco-5k"): """
        CLIP 83.3/61.9 51.8/32.7
        Long-CLIP 87.3/70.7 57.6/40.4
        SigLIP 89.8/75.1 65.4/47.2
        HiMo-CLIP 88.4/72.1 60.6/40.8""",
    (CAFT, "dci docci sv-1k sv-10k urban-1k iiw"): """
        FLAIR 61.3/66.2 70.3/72.6 98.5/98.0 90.3/89.4 83.6/87.7 91.3/91.5
        CAFT 69.4/69.4 80.6/80.4 99.0/98.8 95.1/94.5 93.6/93.9 97.4/96.1
        CAFT++ 69.7/72.4 80.4/82.0 99.5/99.0 95.5/94.8 93.6/95.4 97.6/97.4""",
    (BETA, "urban-1k sv-1k dci"): """
        beta-CLIP-CE 88.6/89.0 94.0/93.7 58.4/59.9
        beta-CLIP-BCE 92.3/91.8 94.1/94.4 63.6/65.1""",
    (BETA, "fg-ovd"): """
        CLIP 12.0/23.1/22.2/58.5
        Long-CLIP 9.2/18.4/16.2/51.8
        FG-CLIP 46.1/66.6/68.7/83.4
        beta-CLIP-CE 30.9/55.4/60.4/80.3
        beta-CLIP-BCE 20.1/38.5/34.2/71.3""",
}


def published(protocol: str, measures: Iterable[str]) -> tuple[Published, ...]:
    """The published numbers of a protocol, for those metrics that a result has."""
    known, out = set(measures), list[Published]()
    for (source, protocols), text in NUMBERS.items():
        columns = protocols.split()
        for line in text.split("\n") if protocol in columns else ():
            model, *values = line.split() or [""]
            if values:
                numbers = map(float, values[columns.index(protocol)].split("/"))
                pairs = zip(BY_KIND if protocol == "fg-ovd" else BOTH_WAYS, numbers, strict=True)
                out += [Published(model, name, x, source) for name, x in pairs if name in known]
    return tuple(out)
