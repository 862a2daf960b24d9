"""Keys that Dynamo 1.6.1 wrote, read; and ours, read back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.places import ROOT

from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.runtime.components import EndpointName, Instance, decode_instance
from dynamo_router.runtime.kv_stores import Entry
from dynamo_router.workers.records import (
    CARDS,
    EVENT_SOURCES,
    TRTLLM,
    DiscoveryConfig,
    EndpointWorkers,
    ModelCard,
    PublisherRecord,
    by_worker,
    decode_card,
    decode_source,
    encode_card,
    event_channel,
    event_source,
    model_files,
    read_card_key,
)

NAME = EndpointName("dynamo", "backend", "generate")
WORKER = 0x7D7BA1F8AC539C08


def recorded(bucket: str) -> Iterator[Entry]:
    lines = (ROOT / "tests" / "vectors" / "dynamo_etcd_keys.txt").read_text().splitlines()
    for key, value in zip(lines, lines[1:], strict=False):
        if key.startswith(f"{bucket}/"):
            yield Entry(key.removeprefix(f"{bucket}/"), value.encode(), 1)


def fleet_of(*transports: str) -> EndpointWorkers:
    return EndpointWorkers(frozenset(transports))


def recorded_cards() -> dict[int, ModelCard]:
    return {int(e.key.rpartition("/")[2], 16): decode_card(e) for e in recorded(CARDS)}


def recorded_instances(transport: str) -> list[Instance]:
    found = (decode_instance(entry) for entry in recorded("v1/instances"))
    return [i for i in found if i.name == NAME and i.transport == transport]


def test_dynamos_workers_are_found_with_all_that_is_said_of_them() -> None:
    sources = [decode_source(entry) for entry in recorded(EVENT_SOURCES)]
    instances = recorded_instances("tcp")
    workers = fleet_of("tcp").workers(instances, recorded_cards(), sources)
    assert set(workers) == {instance.instance_id for instance in instances} and len(workers) == 4
    route = workers[WORKER].route
    assert route is not None and route.codec == "msgpack"
    assert route.address == f"127.0.0.1:40307/{WORKER:x}/dynamo/backend/generate"
    assert route.publisher_ids == (0x13FB75E8819911,)
    assert route.facts.model_id == "tiny"
    assert route.facts.settings == {
        "kv_block_size": 16, "total_kv_blocks": 16384, "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
    }  # fmt: skip
    source = next(s for s in sources if s.worker == WorkerWithDpRank(WORKER, 0))
    assert source.recovery is not None and source.recovery.transport == "tcp"


def test_one_of_dynamos_without_a_card_or_over_another_plane_is_no_worker() -> None:
    instances = recorded_instances("tcp")
    assert fleet_of("tcp").workers(instances, {}, []) == {}
    assert fleet_of("nats_tcp").workers(instances, recorded_cards(), []) == {}


def test_a_prefill_worker_serves_nobody_alone() -> None:
    card = ModelCard("tiny", 16, "prefill")
    instances = recorded_instances("tcp")
    assert fleet_of("tcp").workers(instances, {WORKER: card}, []) == {}


def test_publishers_count_once_they_are_known_for_each_rank() -> None:
    instance = next(i for i in recorded_instances("tcp") if i.instance_id == WORKER)
    cards = {WORKER: ModelCard("tiny", 16, dp_size=2)}
    sources = [PublisherRecord(WorkerWithDpRank(WORKER, rank), 50 + rank, None) for rank in (0, 1)]
    for said, publishers in ((sources[:1], ()), (sources, (50, 51))):
        worker = fleet_of("tcp").workers([instance], cards, said)[WORKER]
        assert worker.route is not None and worker.route.publisher_ids == publishers


def test_an_engine_over_grpc_needs_no_card() -> None:
    good = Instance(NAME, 5, TRTLLM, "grpcs://10.0.0.7:9001")
    bad = Instance(NAME, 6, TRTLLM, "grpc://nowhere")
    workers = fleet_of().workers([good, bad], {}, [])
    assert set(workers) == {5} and workers[5].route is None
    url = workers[5].url
    assert (url.address, url.worker_id, url.tls) == ("10.0.0.7:9001", 5, True)


def test_what_we_write_is_read_back() -> None:
    card = ModelCard("ours", 64, "aggregated", 4096, 100, 8, 512, 2, 0)
    bucket, key, value = encode_card(card, NAME, 255)
    assert (bucket, key) == (CARDS, "dynamo/backend/generate/ff")
    read = decode_card(Entry(key, value, 1))
    assert read.checksum and read.partner_checksum
    assert replace(read, checksum="", partner_checksum="") == card
    target = Instance(EndpointName("dynamo", "backend", "x"), 255, "tcp", "h:1/ff/a", "msgpack")
    source = PublisherRecord(WorkerWithDpRank(255, 1), 0xABC, target)
    bucket, key, value = event_source(NAME, source)
    assert bucket == EVENT_SOURCES and key.endswith("/topic/kv-events/abc")
    assert decode_source(Entry(key, value, 1)) == source


@pytest.mark.parametrize(
    "key",
    [
        "dynamo/backend/generate/7f", "dynamo.backend.generate/7f",
        "dynamo/backend/generate/7f/lora-1", "dynamo.backend.generate/7f/lora-1",
    ],
)  # fmt: skip
def test_a_card_stands_under_the_names_with_slashes_or_with_dots(key: str) -> None:
    assert read_card_key(key) == (NAME, 0x7F, "lora-1" if key.endswith("lora-1") else "")


@pytest.mark.parametrize(
    "key",
    [
        "", "7f", "dynamo.backend.generate", "dynamo.backend.generate/", "dynamo.backend/7f",
        "dynamo.backend.generate.x/7f", "dynamo..generate/7f", "dynamo/backend/7f",
        "dynamo/backend/generate/-7f", "dynamo.backend.generate/7 f", "dynamo//generate/7f",
        "dynamo.backend.generate/" + "f" * 17, "dynamo/back.end/generate/7f",
    ],
)  # fmt: skip
def test_other_keys_are_those_of_no_card(key: str) -> None:
    with pytest.raises(ValueError, match="."):
        read_card_key(key)


def test_a_card_is_written_under_either() -> None:
    card = ModelCard("ours", 64, adapter="Sql Adapter")
    for generation, prefix in (("today", NAME.prefix), ("seed", "dynamo.backend.generate/")):
        _, key, _ = encode_card(card, NAME, 255, generation=generation)  # type: ignore[arg-type]
        assert key == f"{prefix}ff/sql-adapter"
        assert read_card_key(key) == (NAME, 255, "sql-adapter")


def test_a_source_whose_worker_was_rounded_is_that_of_the_worker_it_can_be() -> None:
    exact, near, far = 2**62 + 700, 2**62 + 900, 2**61 + 1
    for written in (float(exact), f"{exact:.14g}"):
        target = Instance(NAME, exact, "tcp", "h:1/p", "msgpack")
        source = PublisherRecord(WorkerWithDpRank(exact, 1), 2**60 + 1, target)
        _, key, value = event_source(NAME, source)
        text = value.decode().replace(f'"worker_id":{exact}', f'"worker_id":{written}')
        text = text.replace(f'"instance_id":{exact}', f'"instance_id":{written}')
        text = text.replace(f'"publisher_id":{2**60 + 1}', f'"publisher_id":{2**60}')
        read = decode_source(Entry(key, text.encode(), 1))
        assert read.publisher_id == 2**60 + 1 and read.recovery is not None
        assert by_worker([read], [far, exact]) == {
            source.worker: replace(read, worker=source.worker)
        }
        # It may be either's, or a worker's of elsewhere: it is nobody's then.
        assert set(by_worker([read], [far])) == set(by_worker([read], [])) == {read.worker}
    assert set(by_worker([read], [near, exact])) == {read.worker}
    assert by_worker([source], [near, exact]) == {source.worker: source}


@pytest.mark.parametrize(
    "change",
    [('"publisher_id":7', '"publisher_id":8'), ('"dp_rank":1', '"dp_rank":1.5'),
     ('"worker_id":5', '"worker_id":-5'), ('"worker_id":5', '"worker_id":1e300')],
)  # fmt: skip
def test_a_source_with_numbers_that_cannot_be_is_none(change: tuple[str, str]) -> None:
    _, key, value = event_source(NAME, PublisherRecord(WorkerWithDpRank(5, 1), 7, None))
    assert change[0] in value.decode()
    with pytest.raises(ValueError, match="."):
        decode_source(Entry(key, value.decode().replace(*change).encode(), 1))


def test_our_channel_has_the_form_of_theirs() -> None:
    _, key, value = event_channel(NAME, 0xABC, "namespace.dynamo")
    theirs = next(e for e in recorded("v1/event_channels") if b'"Nats"' in e.value)
    ours, read = msgspec.json.decode(value), msgspec.json.decode(theirs.value)
    assert ours.keys() == read.keys() and ours["scope"] == read["scope"]
    assert key.split("/")[:-2] == theirs.key.split("/")[:-2]


@pytest.mark.parametrize(
    "value", [b"", b"{}", b'{"card_json": {}}', b'{"card_json": {"display_name": "x"}}', b"\xff"]
)
def test_junk_is_no_card_and_no_source(value: bytes) -> None:
    for decode in (decode_card, decode_source):
        with pytest.raises(ValueError, match="not a"):
            decode(Entry("dynamo/backend/generate/1", value, 1))


def test_where_workers_are_found() -> None:
    etcd = {"ETCD_ENDPOINTS": "http://e:2379"}
    plain = DiscoveryConfig()
    assert plain.backend(given_workers=False, environ=etcd) == "etcd"
    assert plain.backend(given_workers=True, environ=etcd) == "static"
    assert plain.backend(given_workers=False, environ={}) == "static"
    assert DiscoveryConfig(discovery="mem").backend(given_workers=True, environ={}) == "memory"
    with pytest.raises(ConfigError, match="discovery"):
        DiscoveryConfig(discovery="zookeeper")


def test_a_tokenizer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_path.*config\.json"):
        model_files(str(tmp_path))
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    files = model_files(str(tmp_path))
    assert files["model_info"]["hf_config_json"]["checksum"].startswith("blake3:")
    assert "gen_config" not in files
