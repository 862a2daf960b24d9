"""Environment variables that carry our prefix: which of them are no settings. Pure."""

import re
from collections.abc import Collection, Mapping

# What Kubernetes sets in every pod of a namespace with a Service "dynamo-router":
# https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_LINK = re.compile(
    r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)"
)
_LINK_VALUE = re.compile(r"(?:tcp|udp|sctp)://")
NEAR = 0.85
"""How alike a name of another command must be to one of ours to be taken for a misspelling."""


def is_service_link(value: str) -> bool:
    """Whether a variable's value is the address of a Kubernetes Service, not a setting."""
    return _LINK_VALUE.match(value) is not None


def unknown_names(
    environ: Mapping[str, str],
    known: Collection[str],
    *,
    prefix: str,
    others: Collection[str] = (),
) -> list[str]:
    """A sentence on each variable with the prefix that is none of the known.

    `others` are prefixes under which other commands have theirs. Service links are passed over,
    unless they stand where a setting of ours would.
    """
    import difflib

    warnings = []
    for name, value in sorted(environ.items()):
        if not name.startswith(prefix) or not value:
            continue
        if is_service_link(value) and name in known:
            warnings.append(f"{name} is ignored: it is the address of a Kubernetes Service")
        elif name not in known and not _SERVICE_LINK.fullmatch(name.removeprefix(prefix)):
            foreign = name.startswith(tuple(others))
            near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR if foreign else 0.6)
            if near:
                warnings.append(f"{name} is no setting; did you mean {near[0]}?")
            elif not foreign:
                warnings.append(f"{name} is no setting")
    return warnings
