"""The command line, a file for each noun: parses, calls and prints.

data      The commands `data ...`: check, scenes, features, describe, phrases, pack, superpixels.
demo      The demo: train a small model on drawn scenes, measure it on unseen ones, and write one page
          about it.
encode    Vectors of a whole folder or file, written to disk: `grainline encode`.
evaluate  The commands `evaluate` and `encode`: a model is measured; its vectors are written.
index     The commands `index ...`, `search`, `serve` and `export`; main.py mounts them.
main      The command line, and the commands that have no file of their own.
progress  A progress bar on a terminal, silence elsewhere.
show      The command `show`: what a model makes of images: segments, where texts look, patches that
          stay.
"""
