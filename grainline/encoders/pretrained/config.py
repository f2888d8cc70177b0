"""The settings of an encoder that starts from a checkpoint, in the place of those of one from scratch."""

from typing import Any, Literal

from pydantic import Field, model_validator

from grainline.config import Config


class PretrainedImageConfig(Config):
    """The image side of a checkpoint."""

    pretrained: str = Field(min_length=1)  # a name, folder or file, as `load_pretrained` takes it
    size: int | None = Field(None, gt=0)  # side of the square input in pixels; None: that of the checkpoint
    quick_gelu: bool | None = None  # None: as the checkpoint says
    resize: Literal["crop", "squash"] | None = None  # to a square; None: as the checkpoint says
    patches: Literal["attention", "values"] = "attention"  # what they take up in the last layer of a CLIP
    architecture: dict[str, Any] | None = (
        None  # filled in when the checkpoint is read: it is not needed again
    )


class PretrainedTextConfig(Config):
    """The text side of a checkpoint."""

    pretrained: str = Field(min_length=1)  # a name, folder or file, as `load_pretrained` takes it
    context: int | None = Field(None, gt=2)  # longest text in tokens; None: that of the checkpoint
    stretch: Literal["keep", "linear"] = "keep"  # how positions become more (docs/pretrained.md)
    frozen_positions: int = Field(0, ge=0)  # so many of the first never learn, whatever the rules say
    quick_gelu: bool | None = None  # None: as the checkpoint says
    architecture: dict[str, Any] | None = (
        None  # filled in when the checkpoint is read: it is not needed again
    )

    @model_validator(mode="after")
    def _some_learn(self) -> "PretrainedTextConfig":
        if self.context is not None and self.frozen_positions >= self.context:
            raise ValueError(
                f"frozen_positions {self.frozen_positions} is not less than the context, "
                f"{self.context} tokens"
            )
        return self


def is_pretrained(value: Any) -> str:
    """The tag of a side: "pretrained" where it has that field, else "scratch"."""
    named = isinstance(value, PretrainedImageConfig | PretrainedTextConfig)
    return "pretrained" if named or (isinstance(value, dict) and "pretrained" in value) else "scratch"
