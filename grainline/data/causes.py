"""Why a sample could not be used: the fixed phrases that logs, reports and `Damaged.cause` share."""

DAMAGED_IMAGE = "damaged image"  # the bytes are there and are no picture; only grainline.data.decode says so
MISSING_IMAGE = "missing image"  # nothing where the picture should be
MISSING_CAPTION = "missing caption"  # no text, or only white space
TRUNCATED_TAR = "truncated tar"  # the archive ends before the sample does
UNREADABLE_FILE = "unreadable file"  # the system refuses: permissions, a disk or network that fails
DAMAGED_ROW = "damaged row"  # one line of a table that cannot be parsed
DAMAGED_TEXT = "damaged text"  # a file of texts beside an image that is not UTF-8, or not JSON
DAMAGED_REGION = "damaged region"  # a box, mask, span or foil that makes no sense

CAUSES = (
    DAMAGED_IMAGE,
    MISSING_IMAGE,
    MISSING_CAPTION,
    TRUNCATED_TAR,
    UNREADABLE_FILE,
    DAMAGED_ROW,
    DAMAGED_TEXT,
    DAMAGED_REGION,
)
