"""JSON as a hostile writer might send it: a key given twice, NaN, half a surrogate pair, bottomless nesting and endless
digits are refused.
"""

import json
from typing import Any, Final, NoReturn

from tie.catalog.errors import BundleRejected

_MAX_DEPTH_FAULT: Final = "is nested too deeply"
_SURROGATES: Final = (b"\\ud", b"\\uD")


def loads(file: str, data: bytes, what: str = "") -> Any:
    """`what` says which part of the file this is, where it is not the whole ("header ")."""
    try:
        values = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        if any(escape in data for escape in _SURROGATES):
            json.dumps(values, ensure_ascii=False).encode("utf-8")  # raises for a half of a pair
    except _Refused as refused:
        raise BundleRejected(file, f"{what}{refused}") from None
    except RecursionError:
        raise BundleRejected(file, f"{what}{_MAX_DEPTH_FAULT}") from None
    except ValueError:  # bad UTF-8, bad JSON, half a surrogate pair, or an integer beyond Python's digit limit
        raise BundleRejected(file, f"{what}is not valid JSON") from None
    return values


class _Refused(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise _Refused("gives a key twice")
    return values


def _no_constant(_: str) -> NoReturn:
    raise _Refused("holds NaN or an infinity")
