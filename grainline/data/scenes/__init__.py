"""A procedural world with known truth: what is in a picture, how it looks, and what people say about it.

    scene = sample(seed=0, split="dev", index=3)
    picture(scene, 64)       # PIL image
    label_map(scene, 64)     # [64, 64] uint8, k + 1 where scene.things[k] is seen
    tell(scene)              # captions, noun phrases, sentences, foils

The data source over it is grainline.data.sources.scenes.Scenes.
"""

from grainline.data.scenes.draw import label_map, picture
from grainline.data.scenes.foils import KINDS
from grainline.data.scenes.speech import Mention, Sentence, Told, tell
from grainline.data.scenes.world import SPLITS, VERSION, Background, Scene, Thing, held_out, sample

__all__ = [
    "KINDS",
    "SPLITS",
    "VERSION",
    "Background",
    "Mention",
    "Scene",
    "Sentence",
    "Thing",
    "Told",
    "held_out",
    "label_map",
    "picture",
    "sample",
    "tell",
]
