"""Pictures of results: what is checked before they are drawn, and how they are written.

matplotlib comes with the extra `plot`; nothing here imports it before a picture is wanted.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ...process.settings import bad_setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_matplotlib() -> None:
    """ConfigError if matplotlib is not installed: before an hour of measuring, not after it."""
    try:
        import matplotlib  # noqa: F401  # only whether it is there
    except ImportError:
        raise bad_setting("plot", "needs matplotlib: pip install 'dynamo-router[plot]'") from None


def prepare_plots(folder: str) -> None:
    """Make the folder that pictures go to. ConfigError if that fails, or without matplotlib."""
    require_matplotlib()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise bad_setting("plot", f"cannot make {folder}: {error.strerror or error}") from None


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Write a picture without naming the library, so that equal ones are equal bytes; the path.

    ConfigError if it cannot be written.
    """
    try:
        figure.savefig(path, metadata={"Software": None})
    except OSError as error:
        raise bad_setting("plot", f"cannot write {path}: {error.strerror or error}") from None
    return Path(path)
