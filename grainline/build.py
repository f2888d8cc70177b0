"""From a description to a method: with fresh weights, or begun from the checkpoints that it names.

A description may name checkpoints of others (`pretrained`). `start` reads them and writes into it what they
are: architecture, size of images, length of texts, width of the shared space. From then on the description
says all that is needed to build the method again, and the checkpoints may be gone.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from grainline.config import TRUST_CODE, override, parse
from grainline.data.tokenizers.tokenized import TextTokenizer
from grainline.data.tokenizers.tokenizer import load_tokenizer
from grainline.encoders.pretrained import Pretrained, load_pretrained
from grainline.encoders.pretrained.build import PretrainedImageConfig, PretrainedTextConfig, space_of
from grainline.encoders.superpixels import Superpixels
from grainline.encoders.towers import WIDTH, TowersConfig
from grainline.errors import UserError
from grainline.files import reason, write_text
from grainline.methods import method_class
from grainline.methods.base import Method

FORMAT = 2  # of model.json
NO_ROOM = "can't allocate memory", "Storage size calculation overflowed", "out of memory"
"""What torch says where a tensor is too large."""


class Description(NamedTuple):
    """What `model.json` holds."""

    method: str
    config: TowersConfig


class Start(NamedTuple):
    """A description with nothing left open, and the checkpoints whose weights the method begins with."""

    description: Description
    image: Pretrained | None = None
    text: Pretrained | None = None

    def method(self) -> Method:
        """Fresh weights, but for the sides that come from a checkpoint."""
        made = build(self.description)
        made.towers.fill(self.image, self.text)
        for part in made.towers.image.modules():
            if isinstance(part, Superpixels) and part.cfg.checkpoint is not None:
                part.fill(Path(part.cfg.checkpoint))
        return made

    def tokenizer(self, asked: str | None = None) -> TextTokenizer:
        """That of the text side's checkpoint, or the one asked for; UserError for another vocabulary."""
        assert self.text is not None
        assert self.text.text is not None
        config = self.description.config.text
        assert isinstance(config, PretrainedTextConfig)
        place = config.pretrained  # only said, where it holds none
        return load_tokenizer(asked or self.text.tokenizer, checkpoint=place, vocab=self.text.text.vocab)


def start(description: Description, both: Pretrained | None = None) -> Start:
    """Read the checkpoints that a description names. One that names none comes back as it is.

    both  the checkpoint of both sides, where it has been read already
    Raises UserError where a checkpoint cannot be read, lacks the side it is named for, or does not fit.
    """
    config = description.config
    image, text = (both, both) if both is not None else _loaded(config)
    if image is None and text is None:
        return Start(description)
    values = config.model_dump(mode="json")
    if image is not None and image.image is not None:
        values["image"] |= {"architecture": image.architecture, "size": image.image.size}
    if text is not None and text.text is not None:
        values["text"] |= {"architecture": text.architecture, "context": text.text.context}
    values["width"] = config.width or _width(image, text)
    if image is not None and text is not None and _same(config):
        values |= _logits(values, image)
    return Start(
        description._replace(config=method_config(description.method, values, "the checkpoint")), image, text
    )


def reads_pretrained_texts(description: Description) -> bool:
    """Whether the text side comes from a checkpoint, so that its vocabulary is settled."""
    return isinstance(description.config.text, PretrainedTextConfig)


def is_pretrained(description: Description) -> bool:
    """Whether any side comes from a checkpoint."""
    return isinstance(description.config.image, PretrainedImageConfig) or reads_pretrained_texts(description)


def image_settings(description: Description) -> dict[str, Any]:
    """How `EvalTransform` makes a square of an image: as the image side's checkpoint wants it."""
    image = description.config.image
    if not isinstance(image, PretrainedImageConfig):
        return {}
    found = image.architecture or {}
    return {name: found[name] for name in ("resize", "filter", "margin")}


def build(description: Description) -> Method:
    """A method with fresh weights."""
    cls: Any = method_class(description.method)
    try:
        method: Method = cls(description.config)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or any(word in str(error) for word in NO_ROOM):
            raise UserError(
                f"this {description.method} is too large for the memory here: lower its sizes"
            ) from None
        raise
    return method


def write_description(folder: Path, description: Description) -> None:
    """Write `model.json`."""
    config = description.config.model_dump(mode="json")
    values = {"format": FORMAT, "method": description.method, "config": config}
    write_text(folder / "model.json", json.dumps(values, indent=1) + "\n")


def read_description(folder: Path, *, trust_code: bool = False) -> Description:
    """Read `model.json`.

    Raises UserError for a missing or damaged file, for one of another format, and for one that names a class
    outside grainline, unless `trust_code`.
    """
    where = folder / "model.json"
    try:
        values = json.loads(where.read_text(encoding="utf-8"))
        version, name, config = values["format"], values["method"], values["config"]
    except OSError as error:
        raise UserError(f"{where} cannot be read: {reason(error)}; put back a copy of it") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{where} is no model description, so it is damaged or was changed; put back a copy of it"
        ) from None
    if version != FORMAT:
        raise UserError(
            f"{where} has format {version}, this grainline reads format {FORMAT}: train again, or use the "
            "version that wrote it"
        )
    trust_code = trust_code or TRUST_CODE.get()
    return Description(name, method_config(name, config, str(where), trust_code=trust_code))


def method_config(name: str, values: dict[str, Any], where: str, *, trust_code: bool = True) -> TowersConfig:
    """The checked config of a method given by name, or as "my_module:MyMethod"."""
    cls = method_class(name, where, trust_code=trust_code)
    return parse(cls.config_class, values, where, trust_code=trust_code)


def scored(description: Description, scoring: str | None) -> Description:
    """The description with another way to score pairs; as it is for None.

    scoring  the way; of a method that mixes two scores, a colon and the share of the second may stand behind
             it: conditioned:0.7

    Raises UserError where the method has one way only, and for a way that it does not have.
    """
    if scoring is None:
        return description
    known = type(description.config).model_fields
    if "scoring" not in known:
        raise UserError(f"scoring is {scoring!r}; {description.method} has one way to score: leave it out")
    way, mixed, share = scoring.partition(":")
    changes = {"scoring": way}
    if mixed and "alpha" not in known:
        raise UserError(f"scoring is {scoring!r}; {description.method} mixes no scores: leave :{share} out")
    if mixed:
        changes["alpha"] = share
    values = override(description.config.model_dump(mode="json"), [f"{k}={v}" for k, v in changes.items()])
    return description._replace(config=method_config(description.method, values, "--scoring"))


def with_patches(description: Description, patches: str | None) -> Description:
    """The description with other image tokens (`model.image.patches`); as it is for None.

    Weights are the same for both, so a model can be measured either way without training. Raises UserError
    where the image encoder has no such choice.
    """
    if patches is None:
        return description
    values = override(description.config.model_dump(mode="json"), [f"image.patches={patches}"])
    return description._replace(config=method_config(description.method, values, "--patches"))


def _loaded(config: TowersConfig) -> tuple[Pretrained | None, Pretrained | None]:
    """The checkpoints of both sides; one that serves both is read once."""
    image = config.image if isinstance(config.image, PretrainedImageConfig) else None
    text = config.text if isinstance(config.text, PretrainedTextConfig) else None
    for side, name in ((image, "image"), (text, "text")):
        if side is not None and side.architecture is not None:
            raise UserError(
                f"field model.{name}.architecture is filled in when {side.pretrained} is read; leave it out"
            )
    if image is not None and text is not None and _same(config) and image.quick_gelu == text.quick_gelu:
        both = load_pretrained(
            image.pretrained,
            size=image.size,
            context=text.context,
            stretch=text.stretch,
            quick_gelu=image.quick_gelu,
            resize=image.resize,
        )
        return _with(both, "image", image.pretrained), _with(both, "text", text.pretrained)
    seen = read = None
    if image is not None:
        found = load_pretrained(
            image.pretrained, size=image.size, quick_gelu=image.quick_gelu, resize=image.resize
        )
        seen = _with(found, "image", image.pretrained)
    if text is not None:
        found = load_pretrained(
            text.pretrained, context=text.context, stretch=text.stretch, quick_gelu=text.quick_gelu
        )
        read = _with(found, "text", text.pretrained)
    return seen, read


def _with(found: Pretrained, side: str, name: str) -> Pretrained:
    """The checkpoint, once it is known to have this side."""
    if (found.image if side == "image" else found.text) is None:
        kind = found.architecture["kind"]
        raise UserError(
            f"{name} is a {kind}, which has no {side} side; name another for model.{side}.pretrained"
        )
    return found


def _same(config: TowersConfig) -> bool:
    """Whether both sides come from one checkpoint."""
    image, text = config.image, config.text
    return (
        isinstance(image, PretrainedImageConfig)
        and isinstance(text, PretrainedTextConfig)
        and image.pretrained == text.pretrained
    )


def _width(image: Pretrained | None, text: Pretrained | None) -> int:
    """That of the space which the checkpoints meet in; one side alone of a GroupViT has none."""
    spaces = {
        side: space_of(found.architecture)
        for side, found in (("image", image), ("text", text))
        if found and (found.heads is None or image is text)
    }
    widths = {width for width in spaces.values() if width is not None}
    if len(widths) > 1:
        said = " and ".join(f"that of the {side} side {width}" for side, width in spaces.items())
        raise UserError(f"the two checkpoints have shared spaces of unlike width, {said}; say model.width")
    return widths.pop() if widths else WIDTH


def _logits(values: dict[str, Any], found: Pretrained) -> dict[str, float]:
    """Scale and bias of a checkpoint, where the config leaves them open.

    A method with a bias takes both or none: the scale of a CLIP is made for logits without one.
    """
    if "scale" not in values or found.scale is None or ("bias" in values and found.bias is None):
        return {}
    most = values["max_scale"]
    own = {"scale": float(found.scale) if most is None else min(float(found.scale), most)}
    if "bias" in values and found.bias is not None:
        own["bias"] = float(found.bias)
    return {name: x for name, x in own.items() if values[name] is None}
