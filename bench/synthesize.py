"""dynamo-router synthesize: learns a trace, or loads what was learned, and writes a new one."""

import os
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..process.setting_checks import require_at_least
from ..process.settings import bad_setting, option
from .results import Output, facts_table
from .synthesizer import (
    KINDS,
    WINDOW,
    Fit,
    ModelKind,
    Scaling,
    TraceModel,
    check_fit,
    describe_model,
    is_model,
    learn_model,
    load_model,
    save_model,
    synthesize,
)
from .traces import TraceRequest, check_trace_block_size, encode_request, read_columns

BATCH = 1000  # requests written at once


@dataclass(frozen=True, kw_only=True)
class SynthesizeConfig:
    """What to make of what. Raises ConfigError, naming the key, on a bad value."""

    source: str = field(
        metadata={"help": "A trace to learn, or a model that --save-model wrote.",
                  "positional": True}
    )  # fmt: skip
    requests: int | None = option(
        None, "How many requests to make; not given: as many as were learned."
    )
    seed: int = option(0, "Another seed is another trace of the same kind.")
    output: str = option("-", 'Write the trace to this file; "-" is stdout.')
    model: ModelKind = option("sessions", "What to draw from.", choices=KINDS)
    fit: bool = option(
        False,
        "Check the model on the trace first: if its traffic is off by more than 3 % in hit rate or"
        " mean input length, use the other model if that is nearer, and print which.",
    )
    window: int = option(
        WINDOW, "Requests that share the Markov model's transitions; 0: all, a memoryless walk."
    )
    prefix_len_multiplier: float = option(1.0, "Stretch what prompts share.")
    prefix_root_multiplier: int = option(
        1, "Number of families of sessions, which share no prefix with each other."
    )
    prompt_len_multiplier: float = option(1.0, "Stretch what is a prompt's own.")
    osl_multiplier: float = option(1.0, "Stretch outputs.")
    pause_multiplier: float = option(
        1.0, "Stretch the time from a turn to the next; of the sessions model only."
    )
    speedup_ratio: float = option(1.0, "Divide all times.")
    min_isl: int | None = option(None, "Draw shorter prompts again.")
    max_isl: int | None = option(None, "Draw longer prompts again; a session ends there.")
    min_osl: int | None = option(None, "Raise shorter outputs to this.")
    max_osl: int | None = option(None, "Cut longer outputs to this.")
    trace_block_size: int | None = option(
        None,
        "Tokens that one hash id of the trace stands for; not given: as a record states, else 512.",
    )
    save_model: str | None = option(None, "Write what was learned to this file.")
    progress: bool = option(True, "Show a progress bar, if stderr is a terminal.")
    json: str | None = option(None, 'Write a summary as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "requests")
        require_at_least(self, 0, "window")
        check_trace_block_size(self.trace_block_size)
        if self.json == "-" and self.output == "-":
            raise bad_setting("json", "stdout is taken by the trace: give --output")
        if self.model == "markov" and self.pause_multiplier != 1:
            raise bad_setting("pause_multiplier", "the Markov model knows of no turns")
        if self.fit and self.pause_multiplier != 1:
            raise bad_setting("fit", "may choose the Markov model, which stretches no pauses")
        self.scaling()

    def scaling(self) -> Scaling:
        """The multipliers and limits among these settings."""
        return Scaling(**{entry.name: getattr(self, entry.name) for entry in fields(Scaling)})


def run(config: SynthesizeConfig) -> int:
    """The command: 0; ConfigError for what cannot be read, met or written."""
    output = Output(config.json, tables_on_stderr=True)  # stdout may carry the trace
    started = perf_counter()
    with trace_file(config.output) as file:
        model, fit = _obtain(config)
        kind = config.model if fit is None else fit.kind
        if fit is not None:
            print(f"fit: {fit}", file=sys.stderr)
        learned = perf_counter()
        if config.save_model is not None:
            save_model(model, config.save_model)
        total = config.requests or model.requests
        made = synthesize(model, total, seed=config.seed, kind=kind, scaling=config.scaling())
        begun = perf_counter()
        tokens = write_trace(_shown(made, total, config.progress), file)
        ended = perf_counter()
    summary = {
        "requests": total,
        "input_tokens": tokens,
        "trace_block_size": model.block_size,
        "model": kind,
        "seed": config.seed,
        "learn_s": learned - started,
        "write_s": ended - begun,
        "requests_per_s": total / (ended - begun),
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    output.print(facts_table(f"{config.source} -> {config.output}", summary))
    output.write({**summary, "learned": describe_model(model)})
    return 0


def write_trace(requests: Iterable[TraceRequest], file: BinaryIO) -> int:
    """Write the requests as they come; return the sum of their input lengths."""
    tokens, lines = 0, []
    for request in requests:
        lines.append(encode_request(request))
        tokens += request.input_length
        if len(lines) == BATCH:
            file.write(b"".join(lines))
            lines.clear()
    file.write(b"".join(lines))
    return tokens


@contextmanager
def trace_file(target: str) -> Iterator[BinaryIO]:
    """A file to write a trace to; it gets its name when the block ends well. "-" is stdout.

    ConfigError if it cannot be written, at once where that can be known.
    """
    if target == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(target)
    special = path.exists() and not path.is_file()  # a pipe or a device, or a folder
    written = path if special else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with open(written, "wb") as file:
                yield file
            if not special:
                written.replace(path)
        finally:
            if not special:
                written.unlink(missing_ok=True)
    except OSError as error:
        raise bad_setting("output", f"cannot write {target}: {error.strerror or error}") from error


def _obtain(config: SynthesizeConfig) -> tuple[TraceModel, Fit | None]:
    """The model, and its fit if that was asked for."""
    if is_model(config.source):
        if config.fit:
            text = f"{config.source} is a model: only its trace shows whether it fits"
            raise bad_setting("fit", text)
        return load_model(config.source), None
    columns = read_columns(config.source, trace_block_size=config.trace_block_size)
    model = learn_model(columns, config.window)
    return model, check_fit(columns, model, config.model) if config.fit else None


def _shown(requests: Iterable[TraceRequest], total: int, wanted: bool) -> Iterator[TraceRequest]:
    """The same requests, with a progress bar on stderr if that is a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield from requests
        return
    with Progress(
        TextColumn("synthesize"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("synthesize", total=total)
        for done, request in enumerate(requests):
            if not done % BATCH:
                bar.update(task, completed=done)
            yield request
        bar.update(task, completed=total)
