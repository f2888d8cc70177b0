"""A procedural world with known truth: scenes, their images, and their captions.

    scene = sample(seed=0, split="dev", index=3)
    render(scene, 64)        # PIL image
    label_map(scene, 64)     # [64, 64] uint8, k + 1 where scene.things[k] is seen
    tell(scene)              # captions, noun phrases, sentences, foils

The data source over it is grainline.data.scenes.source.Scenes.

    draw     A scene as an image and as a map of labels, at any resolution.
    export   Scenes as files: WebDataset tars that any reader of KEY.png and KEY.json understands.
    foils    Captions and phrases that are wrong in exactly one thing: which piece to replace, by which words.
    phrases  Sentences as pieces of text that know what they state.
    source   The procedural world of grainline.data.scenes as a source of records.
    speech   The captions of a scene: a long one, a short one, and foils.
    words    The words in which scenes are described.
    world    What is in a scene: its objects, its background, and what is true between them.
"""

from grainline.data.scenes.draw import label_map, render
from grainline.data.scenes.foils import KINDS
from grainline.data.scenes.speech import Mention, SceneDescription, Sentence, tell
from grainline.data.scenes.world import SPLITS, VERSION, Background, Scene, Thing, held_out, sample

__all__ = [
    "KINDS",
    "SPLITS",
    "VERSION",
    "Background",
    "Mention",
    "Scene",
    "SceneDescription",
    "Sentence",
    "Thing",
    "held_out",
    "label_map",
    "render",
    "sample",
    "tell",
]
