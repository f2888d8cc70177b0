"""Retrieval on the validation sources of a recipe, while a model is trained."""

from grainline.build import Description
from grainline.data.descriptions import Descriptions
from grainline.data.open_source import open_sources, takes_images
from grainline.data.record import Source
from grainline.data.tokenizers.tokenized import TextTokenizer
from grainline.errors import UserError
from grainline.evaluation.encode import encode_source
from grainline.evaluation.pages.examples import Measured
from grainline.evaluation.suites.registry import Options, retrieval_suite
from grainline.methods.base import Method
from grainline.model import Model
from grainline.training.loop import Validation
from grainline.training.recipe import Recipe


class Measure:
    """Retrieval on the validation sources."""

    def __init__(
        self,
        description: Description,
        tokenizer: TextTokenizer,
        source: Source,
        damage: float,
        descriptions: Descriptions | None,
    ) -> None:
        """damage  share of the samples that may be damaged"""
        self.description, self.tokenizer, self.source = description, tokenizer, source
        self.damage, self.descriptions = damage, descriptions
        self.last: Measured | None = None

    def __call__(self, method: Method) -> Validation:
        """The sum of recalls first, because it picks the best checkpoint."""
        result = self.run(method).result
        metrics = {metric.name: metric.value for metric in reversed(result.metrics)}
        return Validation(metrics, result.notes, result.data["pictures"])

    def run(self, method: Method) -> Measured:
        """Measure, and keep what was found."""
        model = Model(self.description, method, self.tokenizer)
        own = self.descriptions is not None and self.descriptions.own  # then no query may be a long caption
        encodings = encode_source(
            model,
            self.source,
            captions="each" if own else "whole",
            descriptions=self.descriptions,
            max_damaged=self.damage,
        )
        result = retrieval_suite(method, encodings, Options(resamples=100))
        self.last = Measured(model, self.source, encodings, result)
        return self.last


def validation(
    recipe: Recipe,
    description: Description,
    tokenizer: TextTokenizer,
    size: int,
    descriptions: Descriptions | None,
) -> Measure | None:
    """What measures the model while it is trained; None where the recipe names nothing to measure on."""
    if not recipe.data.validation:
        if recipe.train.validate_every:
            raise UserError("train.validate_every is set, but data.validation names no source to measure on")
        return None
    if not recipe.train.validate_every:
        raise UserError(
            "data.validation names a source, but train.validate_every is 0; set it to a number of steps"
        )
    paths = recipe.data.validation
    images = recipe.data.images if any(map(takes_images, paths)) else None  # it may be for training alone
    source = open_sources(paths, images=images, size=size)
    return Measure(description, tokenizer, source, recipe.data.damage, descriptions)
