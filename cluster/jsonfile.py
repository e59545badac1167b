"""Small JSON files of a store that hold the fields of a dataclass: a process wrote them, a crash or a disk may have
spoiled them, so whoever reads one checks every field's type.
"""

import json
from pathlib import Path
from typing import TypeVar, get_type_hints

__all__ = ["read_fields"]

Fields = TypeVar("Fields")


def read_fields(path: Path, kind: type[Fields]) -> Fields:
    """The file as a `kind`, whose fields are of plain types. Raises OSError, and ValueError for any other content."""
    try:
        fields = json.loads(path.read_bytes())
        value = kind(**fields)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    for name, wanted in get_type_hints(kind).items():
        found = getattr(value, name)
        if not isinstance(found, wanted) or (isinstance(found, bool) and wanted is not bool):
            raise ValueError(f"{name} is {str(found)[:40]!r}")
    return value
