"""dynamo-router synthesize: files in, files out, and every mistake named."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.traces import chat

from dynamo_router import cli
from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.replay import ReplayConfig, timed_requests
from dynamo_router.bench.synthesize import SynthesizeConfig, run, trace_file, write_trace
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.trace import read_trace

REQUESTS = sum(1 for _ in read_trace(SAMPLE_TRACE))


def config(target: Path, source: str | Path = SAMPLE_TRACE, **more: object) -> SynthesizeConfig:
    return SynthesizeConfig(source=str(source), output=str(target), **more)  # type: ignore[arg-type]  # options by name


@pytest.mark.parametrize("model", ["sessions", "markov"])
def test_what_it_writes_replays(tmp_path: Path, model: str) -> None:
    target, facts = tmp_path / "made.jsonl", tmp_path / "facts.json"
    assert run(config(target, model=model, requests=50, json=str(facts))) == 0
    requests = list(read_trace(target))
    assert len(requests) == 50
    sent = list(timed_requests(ReplayConfig(trace=str(target)), 1000))
    assert [request.input_tokens for request in sent] == [made.input_length for made in requests]
    told = json.loads(facts.read_text())
    assert told["requests"] == 50 and told["model"] == model
    assert told["input_tokens"] == sum(made.input_length for made in requests)
    assert told["learned"]["requests"] == REQUESTS and told["trace_block_size"] == 512
    assert told["peak_memory_gib"] > 0 and told["requests_per_s"] > 0


def test_a_model_is_as_good_as_its_trace(tmp_path: Path) -> None:
    one, two, learned = tmp_path / "one.jsonl", tmp_path / "two.jsonl", tmp_path / "learned.model"
    assert run(config(one, save_model=str(learned), seed=4)) == 0
    assert run(config(two, learned, seed=4)) == 0
    assert one.read_bytes() == two.read_bytes()
    assert len(list(read_trace(one))) == REQUESTS
    assert run(config(two, learned, seed=5)) == 0
    assert one.read_bytes() != two.read_bytes()


def test_the_trace_goes_to_stdout(
    capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    assert run(SynthesizeConfig(source=str(SAMPLE_TRACE), requests=20)) == 0
    out, err = capsysbinary.readouterr()
    piped = tmp_path / "piped.jsonl"
    piped.write_bytes(out)
    assert len(list(read_trace(piped))) == 20
    assert b"requests per s" in err


def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, learned = tmp_path / "made.jsonl", tmp_path / "learned.model"

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["dynamo-router", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert isinstance(end.value.code, int)
        return (end.value.code, *capsys.readouterr())

    code, _, _ = call(
        "synthesize", str(SAMPLE_TRACE), "--requests", "30", "--seed", "3", "--output", str(target),
        "--prefix-len-multiplier", "1.5", "--prefix-root-multiplier", "2", "--osl-multiplier", "2",
        "--prompt-len-multiplier", "0.5", "--speedup-ratio", "2", "--max-isl", "9000",
        "--save-model", str(learned),
    )  # fmt: skip
    assert code == 0 and len(list(read_trace(target))) == 30
    code, out, _ = call("analyze", str(learned))
    assert code == 0 and "sessions turns by class" in out
    code, out, _ = call("analyze", str(learned), "--json", "-")
    assert code == 0 and json.loads(out)["requests"] == REQUESTS
    code, _, err = call("analyze", str(learned), "--plot", str(tmp_path / "x.png"))
    assert code == 2 and "is a model" in err
    code, out, _ = call("analyze", str(SAMPLE_TRACE), str(target))
    assert code == 0 and "distance" in out
    code, _, err = call("analyze")
    assert code == 2 and "Missing argument" in err
    code, _, err = call("analyze", str(target), str(learned))
    assert code == 2 and "is a model: make a trace of it to compare" in err
    for words, message in (
        (["--prefix-len-multiplier", "0"], "prefix_len_multiplier: 0.0 must be"),
        (["--prefix-root-multiplier", "-1"], "prefix_root_multiplier: -1 must be"),
        (["--requests", "0"], "requests: 0 must be at least 1"),
        (["--window", "-1"], "window: -1 must be at least 0"),
        (["--trace-block-size", "0"], "trace_block_size: 0 must be"),
        (["--model", "crystal-ball"], "crystal-ball"),
        (["--json", "-"], "json: stdout is taken by the trace"),
        (["--pause-multiplier", "0"], "pause_multiplier: 0.0 must be"),
        (
            ["--model", "markov", "--pause-multiplier", "2"],
            "pause_multiplier: the Markov model knows of no turns",
        ),
        (["--min-isl", "10", "--max-isl", "9"], "min_isl: 10 must not be above max_isl"),
        (["--max-isl", "2", "--output", str(target)], "max_isl: no prompt of 20000 drawn"),
        (["--output", str(tmp_path)], "output: cannot write"),
        (["--output", str(tmp_path / "none" / "x")], "output: cannot write"),
        (["--json", str(tmp_path / "none" / "x")], "cannot write"),
    ):
        code, _, err = call("synthesize", str(SAMPLE_TRACE), *words)
        assert code == 2 and message in err, words
    # What failed left nothing behind, and did not touch what was there.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learned.model", "made.jsonl"]
    assert len(list(read_trace(target))) == 30


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no request"),
        (b'{"timestamp": 0}\n', r"bad.jsonl:1: .*missing required field"),
        (b"nonsense\n", r"bad.jsonl:1: "),
        (
            b'{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1,2]}\n'
            b'{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[2,1]}\n',
            r"bad.jsonl:2: hash id 2 has two parents: id 1 and the start",
        ),
        (
            b'{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1]}\n',
            r"bad.jsonl:1: 1 hash_ids for 600 input tokens",
        ),
        (b"dynamo-router trace model 3\nxx", "is damaged"),
    ],
)
def test_bad_sources_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        run(config(tmp_path / "made.jsonl", source))
    assert not (tmp_path / "made.jsonl").exists()


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        run(config(tmp_path / "made.jsonl", tmp_path / "none.jsonl"))


def test_an_interrupted_trace_is_not_left_behind(tmp_path: Path) -> None:
    target = tmp_path / "made.jsonl"
    target.write_text("before")

    def interrupted():  # type: ignore[no-untyped-def]  # a generator that fails on its way
        yield from chat()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), trace_file(str(target)) as file:
        write_trace(interrupted(), file)
    assert target.read_text() == "before" and len(list(tmp_path.iterdir())) == 1


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    with trace_file("/dev/null") as file:
        assert write_trace(chat(), file) > 0
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with trace_file(str(fifo)) as file:
            write_trace(chat(sessions=1), file)
        assert len(os.read(reader, 1 << 16).splitlines()) == 4
    finally:
        os.close(reader)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_full_disk_is_an_error() -> None:
    with pytest.raises(ConfigError, match="output: cannot write /dev/full: No space left"):
        with trace_file("/dev/full") as file:
            write_trace(chat(), file)
