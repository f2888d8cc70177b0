"""Text encoders of the transformers library that know no images: BERT."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from grainline.encoders.pretrained.adapters import TextEncoder
from grainline.encoders.pretrained.kind import sides_of
from grainline.encoders.pretrained.library import LibraryKind


class BertText(TextEncoder):
    """A BERT, summed up by the state of its first token."""

    table = "embeddings.position_embeddings"

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any]) -> None:
        config = sides_of(architecture)["text"]
        context, vocab = config["max_position_embeddings"], config["vocab_size"]
        super().__init__(model, width=config["hidden_size"], context=context, vocab=vocab)

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        attended = mask | ~mask.any(1, keepdim=True)  # a row of padding attends to itself: no NaN
        hidden = self.model(input_ids=ids, attention_mask=attended.long()).last_hidden_state
        return hidden, hidden[:, 0]


class Bert(LibraryKind):
    """BertModel."""

    model_class, config_class = "BertModel", "BertConfig"
    grid = None
    row = "embeddings.position_embeddings.weight"
    headless = True
    left_out = r"(pooler|cls|classifier|qa_outputs)\b.*"

    def sides(self, model: Any, architecture: Mapping[str, Any]) -> tuple[None, BertText]:
        return None, BertText(model, architecture)
