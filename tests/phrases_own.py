"""Sentences of our own with their phrases: what a careful reader finds with the patterns of beta-CLIP.

Below each: noun phrases; actions; relations, each in the order of the sentence; what is dull is left out.
"""

SENTENCES = """\
A brown dog runs across the wet sand.
    A brown dog|the wet sand; runs across
Two women sit on a wooden bench next to an old man.
    Two women|a wooden bench|an old man; sit on; next to
On the left of the photo, a boy in a red shirt is kicking a ball.
    the left|the photo|a boy|a red shirt|a ball; ; On the left of
A lamp hangs above the table, and a cat sleeps under it.
    A lamp|the table|a cat; hangs above|sleeps under
The small white house in front of the hill has a green door.
    The small white house in front of|the hill|a green door; ; in front of
Several bright, colourful kites fly over a crowded beach.
    Several bright, colourful kites|a crowded beach; fly over
The woman's left hand rests on a closed book.
    The woman's left hand|a closed book; rests on
There are three empty glasses at the bottom of the shelf.
    empty glasses at the bottom of|the shelf; ; at the bottom of
A man wearing a blue helmet is riding a bicycle down the street.
    A man|a blue helmet|a bicycle|the street
Snow covers the roofs of the houses.
    Snow|the roofs|the houses
In the middle of the square stands a tall bronze statue.
    the middle|the square|a tall bronze statue; ; In the middle of
An elderly couple walks along the river while two children play in the grass.
    An elderly couple|the river|two children|the grass; walks along|play in
The sign is made of rusty metal and hangs from two chains.
    The sign|rusty metal|two chains; hangs from
A bowl filled with ripe apples stands to the right of the kettle.
    A bowl|ripe apples|the right|the kettle; filled with|stands to; to the right of
The sky is grey and cloudy.
    The sky
Behind the fence, a black and white cow looks at the camera.
    the fence|a black and white cow|the camera; looks at
It shows the front of a small shop.
    a small shop
The train, which is painted in yellow, waits at the station.
    The train|yellow|the station; painted in|waits at
A bird with long, thin legs stands in shallow water.
    A bird|long, thin legs|shallow water; stands in
Mrs. Miller and Dr. Brown stand on the steps of the Town Hall.
    Mrs. Miller|Dr. Brown|the steps|the Town Hall; stand on
The rising sun lights the tops of the trees.
    The rising sun|the tops|the trees
A carved wooden door opens into a narrow hallway.
    A carved wooden door|a narrow hallway; opens into
Text at the top reads OPEN in large letters.
    Text at the top|OPEN|large letters; ; at the top
The boats are tied to wooden posts near the shore.
    The boats|wooden posts|the shore; tied to
A half-eaten sandwich lies on a plate beside a cup of coffee.
    A half-eaten sandwich|a plate|a cup|coffee; lies on
People dressed in warm coats wait for the bus.
    People|warm coats|the bus; dressed in|wait for
The very old bridge spans a wide, slow river.
    The very old bridge|a wide, slow river
One of the windows is broken, and glass lies on the floor inside.
    the windows|glass|the floor; lies on
He holds an umbrella that protects him from the rain.
    an umbrella|the rain
A poster with the words “No Entry” is pinned to the wall on the right.
    A poster|the words|No Entry|the wall on the right; pinned to; on the right
"""
LINES = SENTENCES.splitlines()
OWN: dict[str, list[str]] = {
    text: (phrases.strip() + "; ; ").split("; ")[:3]
    for text, phrases in zip(LINES[::2], LINES[1::2], strict=True)
}
