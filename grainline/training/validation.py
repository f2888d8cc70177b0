"""Validation during training: retrieval on the validation sources of a recipe."""

from pathlib import Path

from grainline.build import Description
from grainline.data.descriptions import Descriptions
from grainline.data.open_source import open_sources, takes_images
from grainline.data.record import Source
from grainline.data.tokenizers.tokenized import TextTokenizer
from grainline.errors import UserError
from grainline.evaluation.encode import encode_source
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.retrieval import RetrievalSuite
from grainline.loading import load
from grainline.methods.base import Method
from grainline.model import Model
from grainline.training.loop import Validation
from grainline.training.recipe import Recipe


class Validator:
    """Measures retrieval on the validation sources, and stores the last result."""

    def __init__(
        self,
        description: Description,
        tokenizer: TextTokenizer,
        source: Source,
        max_corrupt: float,
        descriptions: Descriptions | None,
    ) -> None:
        """max_corrupt  share of the samples that may be corrupt"""
        self.description, self.tokenizer, self.source = description, tokenizer, source
        self.max_corrupt, self.descriptions = max_corrupt, descriptions
        self.last: Evaluation | None = None  # the result of the last call

    def __call__(self, method: Method) -> Validation:
        """The metrics of a method, rSum first, because it selects the best checkpoint."""
        model = Model(self.description, method, self.tokenizer)
        # A description of the record's own is a long caption: an input then, not a query.
        own = self.descriptions is not None and self.descriptions.own
        encodings = encode_source(
            model,
            self.source,
            captions="each" if own else "whole",
            descriptions=self.descriptions,
            max_corrupt=self.max_corrupt,
        )
        result = RetrievalSuite().measure(method, encodings, Settings(resamples=100))
        self.last = Evaluation(model, self.source, encodings, result)
        metrics = {metric.name: metric.value for metric in reversed(result.metrics)}
        return Validation(metrics, result.notes, result.data["images"])

    def final(self, out: Path) -> Evaluation | None:
        """The last result; of a run that was resumed after its end, that of the weights in its folder."""
        if self.last is None:
            self(load(out, trust_code=True).method)
        return self.last


def make_validator(
    recipe: Recipe,
    description: Description,
    tokenizer: TextTokenizer,
    size: int,
    descriptions: Descriptions | None,
) -> Validator | None:
    """The validator of a recipe; None without validation sources. UserError if its fields contradict."""
    if not recipe.data.validation:
        if recipe.train.validate_every:
            raise UserError("train.validate_every is set, but data.validation names no source to measure on")
        return None
    if not recipe.train.validate_every:
        raise UserError(
            "data.validation names a source, but train.validate_every is 0; set it to a number of steps"
        )
    paths = recipe.data.validation
    images = recipe.data.images if any(map(takes_images, paths)) else None  # it may be for training data only
    source = open_sources(paths, images=images, size=size)
    return Validator(description, tokenizer, source, recipe.data.max_corrupt, descriptions)
