"""A file as text, or the one problem that says why it is none."""

from __future__ import annotations

from pathlib import Path

from batuta.spec.problem import InputError

_PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"\xfd7": "xz", b"BZ": "bzip2", b"\x28\xb5": "zstd"}


def read_text(path: Path) -> str:
    """The whole file, decoded as UTF-8 (a byte order mark is dropped); never empty."""
    name = str(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError.of("no such file", file=name) from None
    except IsADirectoryError:
        raise InputError.of("is a folder, a file was expected", file=name) from None
    except OSError as error:
        raise InputError.of(f"cannot be read: {error.strerror or error}", file=name) from None
    if b"\0" in data:
        packed = _PACKED.get(data[:2])
        fix = f"it looks packed with {packed}: unpack it first" if packed else ""
        raise InputError.of("is a binary file, text was expected", file=name, fix=fix)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise InputError.of(
            f"is not UTF-8 text: byte 0x{data[error.start]:02x}",
            file=name,
            line=line,
            column=column,
            fix="save it as UTF-8",
        ) from None
    if not text.strip():
        raise InputError.of("is empty", file=name)
    return text
