"""dynamo-router report: a page on recorded traffic, how well it was routed, and what to change."""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..base.errors import ConfigError
from ..process.setting_checks import require_at_least
from ..process.settings import bad_setting, option
from .results import Output
from .traces import analyze, columns_of, files_of, read_record
from .traffic_report import (
    POLICIES,
    OutlookSettings,
    advise,
    check_policies,
    fleet_of,
    judge_routing,
    look_ahead,
    write_page,
)

LEAST_SIMULATED = 2
"""Requests: one alone has no rate."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What to report. Raises ConfigError, naming the key, on a bad value."""

    files: tuple[str, ...] = field(
        metadata={
            "help": "Files of one record, or patterns of them, as serve --record writes them.",
            "positional": True,
        }
    )
    output: str = option("report.html", "Write the page to this file.")
    json: str | None = option(None, 'Write the figures as JSON to this file; "-" is stdout.')
    title: str = option("Traffic report", "Heading of the page.")
    simulate: bool = option(True, "Simulate other policies, fleets and caches: some minutes.")
    requests: int = option(
        2000, "Requests to simulate: those that came closest together, one after another."
    )
    seeds: int = option(3, "Seeds of each simulation.")
    policies: str = option(
        ",".join(POLICIES), "Policies to simulate beside the recorded one, with commas."
    )
    workers: int | None = option(None, "Engines of the fleet; not given: as recorded.")
    num_gpu_blocks: int | None = option(
        None, "KV-cache blocks of an engine; not given: as engines reported, or else 16384."
    )
    planner_profile_data: str | None = option(
        None, "NPZ file of measured step times; not given: polynomials."
    )
    progress: bool = option(True, "Print to stderr what is simulated.")

    def __post_init__(self) -> None:
        if not self.files:
            raise bad_setting("files", "at least one is needed")
        require_at_least(self, LEAST_SIMULATED, "requests")
        require_at_least(self, 1, "seeds")
        for key in ("workers", "num_gpu_blocks"):
            if getattr(self, key) is not None:
                require_at_least(self, 1, key)
        check_policies(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.policies.split(",") if name.strip())


def run(config: ReportConfig) -> int:
    """The command: 0, or ConfigError for a record that cannot be used or a page not written."""
    output, target = Output(config.json), Path(config.output)
    _check_target(target)
    files = list(dict.fromkeys(file for each in config.files for file in files_of(each)))
    record = read_record(files)
    fleet = fleet_of(record)
    analysis, samples = analyze(
        columns_of(record.requests, trace_block_size=record.header.block_size)
    )
    figures = judge_routing(record, fleet)
    outlook = None
    if config.simulate and len(record.requests) >= LEAST_SIMULATED:

        def on_run(text: str) -> None:
            if config.progress:
                print(f"simulating {text}", file=sys.stderr)

        settings = OutlookSettings(
            config.requests,
            config.seeds,
            config.workers,
            config.num_gpu_blocks,
            config.planner_profile_data,
            config.names,
        )
        outlook = look_ahead(record, fleet, settings, on_run)
    advice = advise(figures, outlook)
    page = write_page(config.title, record, fleet, analysis, samples, figures, outlook, advice)
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise _unwritable(target, error.strerror or str(error)) from error
    content: dict[str, Any] = {
        "files": files,
        "fleet": asdict(fleet),
        "traffic": {**asdict(analysis), "trace": "the record"},
        "routing": asdict(figures),
        "outlook": None if outlook is None else asdict(outlook),
        "advice": [asdict(each) for each in advice],
    }
    output.write(content)
    for each in advice:
        output.print(f"{each.what} {each.why}")
    output.print(f"wrote {target}")
    return 0


def _check_target(target: Path) -> None:
    """ConfigError if the page cannot be written there: before minutes of simulation."""
    if target.is_dir():
        raise _unwritable(target, "it is a folder")
    if not target.absolute().parent.is_dir():
        raise _unwritable(target, "no such folder")


def _unwritable(target: Path, reason: str) -> ConfigError:
    return bad_setting("output", f"cannot write {target}: {reason}")
