"""A procedural world with known truth: scenes, their images, and their captions.

scene = world.sample(seed=0, split="dev", index=3)
draw.render(scene, 64)        # PIL image
draw.label_map(scene, 64)     # [64, 64] uint8, k + 1 where scene.things[k] is visible
speech.tell(scene)            # captions, noun phrases, sentences, foils

draw     A scene as an image and as a map of labels, at any resolution.
source   Scenes as a source of records, `scenes:dev?count=500`, and as WebDataset tars.
speech   The captions of a scene: a long one, a short one, and foils.
words    The words in which scenes are described, and phrases of them that know what they state.
world    The objects of a scene, its background, and the relations between them.
"""
