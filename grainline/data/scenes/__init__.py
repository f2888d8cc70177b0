"""A procedural world with known truth: what is in a picture, how it looks, and what people say about it.

    scene = sample(seed=0, split="dev", index=3)
    picture(scene, 64)       # PIL image
    label_map(scene, 64)     # [64, 64] uint8, k + 1 where scene.things[k] is seen
    tell(scene)              # captions, noun phrases, sentences, foils

The data source over it is grainline.data.scenes.source.Scenes.

    draw     A scene as a picture and as a map of labels, at any resolution.
    export   Scenes as files: WebDataset tars that any reader of KEY.png and KEY.json understands.
    foils    Captions and phrases that are wrong in exactly one thing: which piece to replace, by which words.
    phrases  Sentences in the making: pieces of text that know what they state, and how they become text.
    source   The procedural world of grainline.data.scenes as a source of records.
    speech   What people might say about a scene: a long caption, a short one, and captions that are wrong in
             one thing.
    words    The words in which scenes are described.
    world    What is in a scene: its objects, its background, and what is true between them.
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
