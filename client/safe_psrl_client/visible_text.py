"""Texts of a service, made fit for a terminal or a page: what cannot be printed is shown as an escape sequence."""


def visible(text: str) -> str:
    """`text` in one line, without control characters: ESC becomes \\x1b, a line break \\n, a right-to-left override \\u202e.

    Every character that is not printable, as `str.isprintable` defines it, is replaced.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
