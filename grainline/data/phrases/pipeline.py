"""Phrases by an installed pipeline of spaCy (extra `text`): `spacy:en_core_web_sm` is what beta-CLIP used.

spaCy tags, parses and finds the noun chunks; everything after that is patterns.py.
"""

from typing import Any

from grainline.data.phrases.base import Phrase, Tagged, Token
from grainline.data.phrases.patterns import extract
from grainline.errors import UserError


class Pipeline:
    """A provider around a pipeline of spaCy."""

    def __init__(self, pipeline: str) -> None:
        """
        pipeline  a name that spacy.load knows, or the folder of a pipeline

        Raises UserError without spaCy, without that pipeline, and where it has no tagger or no parser.
        """
        try:
            import spacy
        except ImportError:
            raise UserError(
                f"provider spacy:{pipeline}: spaCy is not installed; pip install 'grainline[text]', or use "
                "the provider rules"
            ) from None
        try:
            self.nlp: Any = spacy.load(pipeline)
        except OSError as error:
            raise UserError(
                f"provider spacy:{pipeline}: spaCy has no such pipeline ({error}); install it with "
                f"python -m spacy download {pipeline}"
            ) from None
        probe = self.nlp("A cat sits on a mat.")
        missing = [what for what in ("POS", "DEP") if not probe.has_annotation(what)]
        if missing:
            raise UserError(
                f"provider spacy:{pipeline}: the pipeline gives no {' and no '.join(missing)}; noun "
                "chunks need a tagger and a parser, as en_core_web_sm has them"
            )
        self.name = f"spacy {self.nlp.meta['lang']}_{self.nlp.meta['name']} {self.nlp.meta['version']}"

    def phrases(self, text: str) -> list[Phrase]:
        """As `Provider.phrases`."""
        return extract(tagged_by(self.nlp(text)))


def tagged_by(doc: Any) -> Tagged:
    """What a Doc of spaCy says, without its tokens of blanks."""
    kept = [token for token in doc if token.pos_ != "SPACE"]
    place = {token.i: i for i, token in enumerate(kept)}
    tokens = [Token(token.text, token.idx, token.idx + len(token.text), token.pos_) for token in kept]
    chunks = []
    for chunk in doc.noun_chunks:
        inside = [place[i] for i in range(chunk.start, chunk.end) if i in place]
        if inside:
            chunks.append((inside[0], inside[-1] + 1))
    return Tagged(tokens, chunks)
