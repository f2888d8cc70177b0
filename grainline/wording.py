"""Numbers in sentences for people."""


def amount(number: int, noun: str) -> str:
    """How many there are of something whose plural ends in s.

    >>> amount(1, "picture"), amount(1200, "picture")
    ('1 picture', '1,200 pictures')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def there_before(number: int, noun: str) -> str:
    """What a command that goes on found done already, in words.

    >>> there_before(1, "tar"), there_before(4, "record")
    ('1 tar was there before', '4 records were there before')
    """
    return f"{amount(number, noun)} {'was' if number == 1 else 'were'} there before"
