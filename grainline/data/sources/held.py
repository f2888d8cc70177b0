"""Captions held back: `PATH?skip=0,1`, any source without some of the captions of each of its records.

A picture whose description is made of two of its captions is learnt from, and found by, the other ones.
"""

from grainline.data.causes import MISSING_CAPTION
from grainline.data.record import Damaged, Record, Source
from grainline.data.sources.common import digest, divide
from grainline.data.sources.joined import Over
from grainline.data.sources.plain import HELP
from grainline.errors import UserError

OPTION = "skip"


class HeldBack(Over):
    """A source without the captions of some numbers, which count from 0. A record left without is damaged."""

    def __init__(self, source: Source, skip: tuple[int, ...]) -> None:
        super().__init__(source)
        self.skip = skip
        self.path = f"{source.path} without captions {', '.join(map(str, skip))}"

    def __getitem__(self, index: int) -> Record:
        """The record at a position. Raises Damaged where no caption is left."""
        record = self.source[index]
        kept = tuple(text for number, text in enumerate(record.captions) if number not in self.skip)
        if not kept:
            raise Damaged(MISSING_CAPTION, f"{record.key} (all its captions are held back)")
        return _renumbered(record._replace(captions=kept), record.captions, self.skip)

    def fingerprint(self) -> str:
        """sha256 over that of the source, and what is held back."""
        return digest([self.source.fingerprint(), OPTION, *self.skip])


def _renumbered(record: Record, before: tuple[str, ...], skip: tuple[int, ...]) -> Record:
    """With the regions and foils of what is left alone; spans count the captions that are."""
    kept = [number for number in range(len(before)) if number not in skip]
    name = {f"captions.{old}": f"captions.{new}" for new, old in enumerate(kept)}
    regions = []
    for region in record.regions:
        if region.span is None or not region.span[0].startswith("captions."):
            regions.append(region)
        elif region.span[0] in name:
            regions.append(region._replace(span=(name[region.span[0]], *region.span[1:])))
    gone = {before[old] for old in skip if old < len(before)} - {*record.captions, *record.longs}
    foils = tuple(foil for foil in record.foils if foil.true not in gone)
    return record._replace(regions=tuple(regions), foils=foils)


def held_back(path: str) -> tuple[str, tuple[int, ...]]:
    """A path without the option, and the numbers that it gives. Raises UserError.

    >>> held_back("a-*.tar?skip=0,1"), held_back("scenes:dev?count=5&skip=2"), held_back("a.csv?image=x")
    (('a-*.tar', (0, 1)), ('scenes:dev?count=5', (2,)), ('a.csv?image=x', ()))
    """
    base, query = divide(path)
    options = query.split("&") if query else []
    given = [option for option in options if option.startswith(f"{OPTION}=")]
    if not given:
        return path, ()
    numbers = ",".join(option.partition("=")[2] for option in given).split(",")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise UserError(
            f"{', '.join(given)} in {path} must be numbers of captions, which count from 0, such as "
            f"{OPTION}=0,1; {HELP}"
        )
    rest = "&".join(option for option in options if option not in given)
    return (f"{base}?{rest}" if rest else base), tuple(sorted({int(number) for number in numbers}))
