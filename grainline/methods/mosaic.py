"""Mosaic: images as the visual words that they are made of, texts as their whole and their sentences.

The method that grainline recommends, and its own. In four steps:
  1. the tokens of an image are its cells. Their mean, and how often each word of a visual vocabulary is seen
     among them, are projected into one vector (`nn/bag_of_words.py`); before that the square root is taken
     of both, as of any histogram that is compared by a dot product (the Hellinger kernel);
  2. a text is read whole, and each of its sentences by itself. A small network adds to the projection, and
     so does how often each word of a second vocabulary, of the states of text tokens, is seen among them;
  3. the vector of a text lies between the vector of the whole and the mean of those of its sentences;
  4. cross-entropy both ways over cosines, as in CLIP.

The score is the cosine of two vectors, so that an index by vector is exact. Image tokens are what each cell
adds to the vector, so that heat is the share of each cell in the score.

With `places`, for a few kinds of objects at places, sentences find places among the cells as in MaxSim, and
how two places of a sentence lie to each other is scored too (`methods/relations.py`). The score is their mean
with one empty sentence more, so that it grows as a description becomes more complete. The beginnings and ends
of sentences learn to find an image that has them. Relations learn on top of sentences: in one loss, places
became a shortcut, and colours and shapes were learnt far later (docs/LOG.md).
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from grainline.data.texts import Chunking
from grainline.encoders.base import TextTokens
from grainline.encoders.towers import Projection, TowersConfig, distinct_rows, read_parts
from grainline.errors import UserError
from grainline.losses.contrastive import both_ways
from grainline.methods.base import Method, dot
from grainline.methods.maxsim import late_heat, late_score
from grainline.methods.relations import Relations, relation_score
from grainline.methods.shared import LogitScale
from grainline.nn.bag_of_words import BagOfWords
from grainline.nn.hashing import Dropout
from grainline.nn.pooling import unit
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts, full, rows, same_image

TEXTS = 2048  # that words are found among, at most


class MosaicConfig(TowersConfig):
    """Encoders, the visual vocabulary, what reads texts, and how the whole and its sentences are weighed."""

    visual_words: int = Field(1024, ge=0)  # 0: none
    text_words: int = Field(1024, ge=0)  # found among the states of text tokens; 0: none
    temperature: float = Field(0.05, gt=0)  # of the assignment of cells and tokens to words
    roots: bool = True  # of the cells; for encoders whose outputs are no less than 0, as those of a ReLU
    hidden: int = Field(512, ge=0)  # width of the network beside the projection of texts; 0: none
    whole: float = Field(0.3, ge=0, le=1)  # share of the whole text; the mean over its sentences has the rest
    sentences: int = Field(32, gt=1)  # of a text at most
    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 1 / 0.07
    max_scale: float | None = Field(100.0, gt=1)  # None: no bound
    places: bool = False  # sentences find places among the cells, and relations between these are scored
    sharpness: float = Field(10.0, gt=0)  # of the softmax over cells; this and what follows are for places
    coarse: float = Field(0.1, ge=0)  # weight of the loss over vectors
    phrases: float = Field(0.5, ge=0)  # weight of the loss over beginnings and ends of sentences
    wait: float = Field(0.0, ge=0)  # epochs before relations learn: places that are not found teach nothing

    @property
    def reads_tokens(self) -> bool:
        return self.places or self.visual_words > 0


class Mosaic(Method):
    """Dual encoder of visual words and of sentences; with places, of sentences and relations."""

    config_class = MosaicConfig
    cfg: MosaicConfig
    reads_words = False
    new_parameters = ("towers.to_text.more",)

    def __init__(self, cfg: MosaicConfig) -> None:
        super().__init__(cfg)
        towers = self.towers
        self.parts = cfg.sentences + (cfg.whole > 0)
        self.chunking = Chunking(whole=True) if cfg.whole else None
        self.own_cells, self.averaged = cfg.averaged or cfg.places, not cfg.places
        self.scale = LogitScale(cfg.scale or 1 / 0.07, cfg.max_scale)
        self.visual_words: BagOfWords | None = None
        if cfg.visual_words:
            self.visual_words = BagOfWords(cfg.visual_words, towers.image.width, cfg.temperature)
            self.from_words = Projection(cfg.visual_words, towers.space, cfg.dropout)
            nn.init.zeros_(self.from_words.weight)  # the vector begins as that of the encoder
            self.first_images = 256
        self.text_words: BagOfWords | None = None
        if cfg.text_words:
            self.text_words = BagOfWords(cfg.text_words, towers.text.width, cfg.temperature)
            self.from_text_words = Projection(cfg.text_words, towers.space, cfg.dropout)
            nn.init.zeros_(self.from_text_words.weight)
            self.first_images, self.reads_words = 256, True
        if cfg.hidden and isinstance(towers.to_text, Projection):
            towers.to_text = ProjectionAndMore(towers.to_text, cfg.hidden)
        self.relations: Relations | None = None
        if cfg.places:
            if cfg.text_words:
                raise ValueError("beginnings and ends of sentences have no words: set model.text_words=0")
            if self.grid is None:
                raise ValueError("places are those of a grid, and image tokens of this encoder have none")
            self.relations = Relations(self.grid, towers.text.width, towers.space)
            self.place_sharpness = LogitScale(12.0, None)
            self.pairwise = self.empty_part = True
            self.gathers = ("vector", "tokens", "mask", "item", "image")

    @torch.no_grad()
    def fit(self, images: Images, texts: Texts) -> None:
        """Find the words among the cells of some training images and among the tokens of their texts.

        Raises UserError where that cannot be.
        """
        if self.visual_words is not None and not self.visual_words.words.any():
            some = (rows(images, slice(i, i + 32)) for i in range(0, len(images.image), 32))
            cells = torch.cat([full(x.patches)[x.real()] for x in map(self.towers.image_tokens, some)])
            if self.cfg.roots and (least := float(cells.min())) < 0:
                wrong = f"a cell of this image encoder is {least:.3g}, and has no square root"
                raise UserError(f"{wrong}: set model.roots=false")
            fit_words(self.visual_words, self._rooted(cells), "visual_words")
        if self.text_words is not None and not self.text_words.words.any():
            ids, mask = texts.ids.flatten(0, 1), texts.mask.flatten(0, 1)
            first = distinct_rows(ids.masked_fill(~mask, -1))[0]
            first = first[mask[first].any(1)][:TEXTS]
            read = [self.towers.text(ids[some], mask[some]) for some in first.split(64)]
            fit_words(self.text_words, torch.cat([full(x.tokens)[x.mask] for x in read]), "text_words")

    def encode_images(self, images: Images) -> Encoded:
        """tokens: what each cell adds to the vector, whose mean it is; with places at length 1"""
        read = self.towers.image_tokens(images)
        cells, mask, pooled = full(read.patches), read.real(), full(read.pooled)
        gain = gain_of_root(pooled) if self.cfg.roots else torch.ones_like(pooled)
        vector = full(self.towers.to_image(pooled * gain))
        vector_alone = self.training and not self.cfg.places
        shares = None
        if self.visual_words is not None:
            if vector_alone and images.features is not None and images.features.device.type == "cpu":
                histogram = self.visual_words.cached_histogram(
                    images.features[:, 1:], self.cache, self._rooted
                )
            else:
                shares = self.visual_words(self._rooted(cells))
                histogram = mean(shares, mask)
            word_gain = gain_of_root(histogram)
            vector = vector + full(self.from_words(histogram * word_gain))
        if vector_alone:
            tokens = cells.new_zeros(len(cells), 0, vector.shape[1])
            return Encoded(unit(vector), tokens, mask[:, :0], images.image, images.image)
        whole = self.towers.to_image((cells if self.own_cells else pooled[:, None]) * gain[:, None])
        tokens = full(whole).expand(-1, cells.shape[1], -1)
        if shares is not None:
            tokens = tokens + full(self.from_words(shares * word_gain[:, None]))
        tokens = (unit(tokens) if self.cfg.places else tokens).masked_fill(~mask[..., None], 0.0)
        return Encoded(unit(vector), tokens, mask, images.image, images.image, None, read.places)

    def _rooted(self, cells: Tensor) -> Tensor:
        cells = full(cells)
        return cells.clamp(min=0).sqrt() if self.cfg.roots else cells

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: one for each sentence, at length 1, behind a masked one for the whole of several

        With places its looks (`Relations`) stand behind the vector of a sentence: [M, S, 3 D + R + 3].
        """
        parts, mask = read_parts(self.towers, texts, vectors=self._vectors)
        parts, looks = parts.tensor_split([self.towers.space], -1)
        parts, mask = unit(parts), mask.clone()
        if self.cfg.whole:
            mask[:, 0] &= ~mask[:, 1:].any(1)  # the whole of a text of several sentences is none of them
        if self.relations is not None:
            looks = self.relations.read(self.towers, texts, mask, looks)
        vector = torch.lerp(mean(parts, mask), parts[:, 0], self.cfg.whole)
        return Encoded(unit(vector), torch.cat([parts, looks], -1), mask, texts.item, texts.image)

    def _vectors(self, read: TextTokens) -> Tensor:
        """The vectors of texts [U, D], with places and the summaries that relations read behind them"""
        vector = full(self.towers.to_text(read.pooled))
        if (words := self.text_words) is not None:
            tokens, tuned = full(read.tokens), any(x.requires_grad for x in self.towers.text.parameters())
            if self.training and not tuned and tokens.device.type == "cpu":
                histogram = words.cached_histogram(map(Tensor.__getitem__, tokens, read.mask), self.cache)
            else:
                histogram = words.histogram(tokens, read.mask)
            vector = vector + full(self.from_text_words(histogram * gain_of_root(histogram)))
        return vector if self.relations is None else torch.cat([vector, full(read.pooled)], -1)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        if self.relations is None:
            return dot(images, texts)
        return (self._sentences(images, texts) + self._relations(images, texts)) * real_share(texts)

    def _sentences(self, images: Encoded, texts: Encoded) -> Tensor:
        own = texts.tokens[..., : self.towers.space]
        return late_score(images.tokens, images.mask, own, texts.mask, self.cfg.sharpness)

    def _relations(self, images: Encoded, texts: Encoded) -> Tensor:
        """The score of relations. Its gradient stops at cells, sentences, beginnings and ends."""
        assert self.relations is not None
        own, packed = texts.tokens.tensor_split([self.towers.space], -1)
        looks = self.relations.looks(packed)
        sides = images.tokens.detach(), images.mask, own.detach(), texts.mask
        looks = looks._replace(ends=looks.ends.detach())
        return relation_score(*sides, looks, self.relations.features, self.place_sharpness())

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        scale, cfg = self.scale(), self.cfg
        if self.relations is None:
            return both_ways(lambda images, texts: scale * dot(images, texts), local, gathered)
        scores: list[Tensor] = []  # of sentences, which relations learn on top of

        def sentences(images: Encoded, texts: Encoded) -> Tensor:
            scores.append(self._sentences(images, texts))
            return scale * scores[-1]

        fine = both_ways(sentences, local, gathered)
        plain = both_ways(lambda images, texts: scale * dot(images, texts), local, gathered, cfg.coarse)

        def whole(images: Encoded, texts: Encoded) -> Tensor:
            return scale.detach() * (scores.pop(0).detach() + self._relations(images, texts))

        both = both_ways(whole, local, gathered, float(clock.epoch >= cfg.wait))
        terms = fine | {f"coarse {name}": term for name, term in plain.items()}
        terms |= {f"relation {name}": term for name, term in both.items()}
        return terms | {"phrases": Term(cfg.phrases, self._phrases(gathered, scale.detach()))}

    def _phrases(self, both: Pair, scale: Tensor) -> Tensor:
        """The mean over the distinct beginnings and ends of the sentences of captions, u, of

            -log sum over images n that have u of softmax(scale * score(., u))[n],

        with `score` that of a sentence. An image has what any of its captions has.
        """
        assert self.relations is not None
        images, texts = both
        own = (texts.mask & (texts.image >= 0)[:, None]).nonzero()  # text and sentence
        looks = self.relations.looks(texts.tokens[..., self.towers.space :][own[:, 0], own[:, 1]])
        first, back = distinct_rows(looks.key.flatten()[:, None])
        phrases = looks.ends.flatten(0, 1)[first][:, None]  # [U, 1, D]
        real = torch.ones_like(phrases[..., 0], dtype=torch.bool)
        score = late_score(images.tokens, images.mask, phrases, real, self.cfg.sharpness)
        has = same_image(images, texts).to(score)[:, own[:, 0].repeat_interleave(2)]  # [N, 2 * sentences]
        has = torch.zeros_like(score).index_add_(1, back, has) > 0
        score = (scale * score).masked_fill(images.item[:, None] < 0, -torch.inf)
        return -score.log_softmax(0).masked_fill(~has, -torch.inf).logsumexp(0).mean()

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """The share of every cell in the score of its row, without that of relations.

        The mean of the map is the score; with places rows sum to it.
        """
        if self.relations is None:
            return super().heat(images, texts)
        own = texts.tokens[..., : self.towers.space]
        heat = late_heat(images.tokens, images.mask, own, texts.mask, self.cfg.sharpness)
        return heat * real_share(texts)[:, None]


class ProjectionAndMore(Projection):
    """A projection that a network with one hidden layer adds to, nothing at the start."""

    def __init__(self, plain: Projection, hidden: int) -> None:
        super().__init__(plain.in_features, plain.out_features, plain.drop.p)
        self.weight = plain.weight
        last = nn.Linear(hidden, plain.out_features)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        first = nn.Linear(plain.in_features, hidden)
        self.more = nn.Sequential(first, nn.GELU(), Dropout(plain.drop.p), last)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.more(self.drop(x))


def fit_words(words: BagOfWords, tokens: Tensor, field: str) -> None:
    """Find words among tokens. UserError where these are too few. field: of the config, with their number"""
    if len(tokens) < (number := len(words.words)):
        wrong = f"training samples have {len(tokens)} tokens, fewer than the {number} words"
        raise UserError(f"{wrong}: set model.{field}={len(tokens) // 4}")
    words.fit(tokens)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real tokens in the precision of x, whatever autocast says: [N, L, W] -> [N, W]"""
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def real_share(texts: Encoded) -> Tensor:
    """The share of real sentences where each text has an empty one beside its n: n / (n + 1), [M]

    It makes a mean one in which the empty one scores 0: a further sentence raises it where it fits better
    than n / (n + 1) of the mean so far. Training compares texts with other texts, by plain means.
    """
    return 1 - 1 / (texts.mask.sum(1) + 1)


def gain_of_root(x: Tensor) -> Tensor:
    """The factors by which x becomes unit(sqrt(x)), where x >= 0: [..., W], 0 where x is 0

    They make the root of a mean a sum over what was averaged: each x[l] * gain is the share of l.
    """
    root = x.clamp(min=1e-12).sqrt()  # the root has no gradient at 0, where padding is
    return torch.where(x > 0, 1 / (root * root.norm(dim=-1, keepdim=True)), 0.0)
