"""The version of the installed package."""

from importlib import metadata


def package_version() -> str:
    """As it was installed; "unknown" where it runs from a checkout that is not installed."""
    try:
        return metadata.version("dynamo-router")
    except metadata.PackageNotFoundError:
        return "unknown"
