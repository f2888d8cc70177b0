"""`python -m grainline`, which is also what torchrun starts: torchrun -m grainline train RECIPE ..."""

from grainline.cli import main

main()
