"""What the page opens with: images of the index, evenly spread, and texts to try that have matches in it."""

import numpy as np
import torch

from grainline.data.other_texts import PHOTOGRAPHS, trained_on_scenes
from grainline.index.search import Index
from grainline.index.store import NULL_SENTENCES

SAMPLES = 24
EXAMPLES = 3
LONGEST = 110  # characters of an example


def samples(index: Index) -> list[int]:
    """Some rows of the index, evenly spread, without copies."""
    rows = np.linspace(0, len(index) - 1, min(SAMPLES, len(index))).astype(int).tolist()
    return list({index.reader.hashes[row]: row for row in rows}.values())


@torch.no_grad()
def examples(index: Index) -> list[str]:
    """Sentences with the best contrast in this index, each with another best image: [] for an empty one.

    Contrast is the best score minus the mean over the background images, in units of their std. Candidates
    are the calibration sentences, first those whose own image is in the index; where no texts were given,
    and the model was not trained on drawn scenes alone, built-in sentences of photographs.
    """
    if len(index) < 2:
        return []
    reader, texts = index.reader, index.reader.calibration_texts
    sentences, score = list(texts.sentences), reader.take(NULL_SENTENCES, reader.background)
    known = np.isin(texts.image_hashes, reader.hashes)
    if reader.built_in_texts and not trained_on_scenes(index.model.run):
        sentences, known = list(PHOTOGRAPHS), np.zeros(len(PHOTOGRAPHS), bool)
        score = index.score(reader.background, index.model.encode(texts=sentences))
    out: dict[int, str] = {}  # by best image
    best = score.argmax(0).tolist()
    for i in np.lexsort((-_contrast(score), ~known)).tolist():
        if len(sentences[i]) <= LONGEST and sentences[i] not in out.values():
            out.setdefault(best[i], sentences[i])
        if len(out) == EXAMPLES:
            break
    return list(out.values())


def _contrast(score: np.ndarray) -> np.ndarray:
    """[Q] from scores [B, Q]"""
    score = score.astype(np.float64)
    return np.asarray((score.max(0) - score.mean(0)) / np.maximum(score.std(0), 1e-9))
