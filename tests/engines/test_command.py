from dataclasses import replace

import pytest

from roost.domain.allocation import ReplicaName
from roost.domain.gpu import GpuClass
from roost.domain.model import ModelName
from roost.domain.profile import Engine, MetricNames, Profile, ProfileName
from roost.domain.replica import PlacementId, ShardSpec
from roost.engines import adapter
from roost.engines.adapter import Exit, Site
from roost.reconcile.engine_life import Health

COMMAND = adapter(Engine.COMMAND)
PROFILE = Profile(
    name=ProfileName("tei"),
    engine=Engine.COMMAND,
    source="bge",
    slots=8,
    command=(
        *("/opt/tei/bin/router", "--hostname", "{host}", "--port", "{port}"),
        *("--model-id={source}", "--served-model-name", "{model}", "--max", "{slots}"),
        *("--devices", "{gpus}"),
    ),
    args=("--url", "http://{host}:{port}/v1"),
)
SPEC = ShardSpec(
    placement=PlacementId("p1"),
    rank=0,
    replica=ReplicaName("org/embed-0"),
    model=ModelName("org/embed"),
    index=0,
    profile=PROFILE,
    host="127.0.0.1",
    port=21000,
    key="very-secret",
)


def site(source: str = "/models/bge") -> Site:
    return Site(program=(), source=source, threads=8)


def with_profile(**changes: object) -> ShardSpec:
    return replace(SPEC, profile=replace(PROFILE, **changes))  # type: ignore[arg-type]  # by name


def test_the_argument_vector_is_the_commands_with_its_words_filled_in() -> None:
    assert COMMAND.argv(SPEC, site()) == (
        *("/opt/tei/bin/router", "--hostname", "127.0.0.1", "--port", "21000"),
        *("--model-id=/models/bge", "--served-model-name", "org/embed", "--max", "8"),
        *("--devices", ""),
        *("--url", "http://127.0.0.1:21000/v1"),
    )


def test_what_is_filled_in_stays_one_word_and_is_not_filled_in_again() -> None:
    spec = with_profile(command=("run", "{source}", "a {model} b"), args=())
    words = COMMAND.argv(spec, site("/m/{port} $(reboot); 'x"))
    assert words == ("run", "/m/{port} $(reboot); 'x", "a org/embed b")


def test_braces_that_stand_for_nothing_stay() -> None:
    words = ("run", '{"port": {port}}', "{}", "{{port}}", "{unknown}", "${HOME}")
    expected = ("run", '{"port": 21000}', "{}", "{21000}", "{unknown}", "${HOME}")
    assert COMMAND.argv(with_profile(command=words, args=()), site()) == expected


def test_the_environment_has_the_key_and_no_card_unless_one_is_given() -> None:
    env = {"X": "1", "CUDA_VISIBLE_DEVICES": "7", "ROOST_ENGINE_API_KEY": "mine"}
    assert COMMAND.env(with_profile(env=env), site()) == {
        "X": "1",
        "ROOST_ENGINE_API_KEY": "very-secret",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert "very-secret" not in " ".join(COMMAND.argv(SPEC, site()))


@pytest.mark.parametrize(("uuids", "expected"), [(("GPU-a", "GPU-b"), "GPU-a,GPU-b"), ((), "1,3")])
def test_cards_are_shown_and_filled_in_by_uuid_or_by_index(
    uuids: tuple[str, ...], expected: str
) -> None:
    spec = with_profile(
        gpu_class=GpuClass("rtx-4090"), gpus_per_node=2, command=("run", "{gpus}"), args=()
    )
    spec = replace(spec, gpus=(1, 3), gpu_uuids=uuids)
    assert COMMAND.env(spec, site())["CUDA_VISIBLE_DEVICES"] == expected
    assert COMMAND.argv(spec, site()) == ("run", expected)


@pytest.mark.parametrize(
    ("status", "health"),
    [
        (200, Health.READY),
        (503, Health.LOADING),
        (204, Health.BROKEN),
        (401, Health.BROKEN),
        (404, Health.BROKEN),
        (500, Health.BROKEN),
    ],
)
def test_what_the_health_answer_means(status: int, health: Health) -> None:
    assert COMMAND.health(status, b"") is health


def test_the_profile_says_where_health_and_load_are() -> None:
    assert COMMAND.health_path(SPEC) == "/health"
    assert COMMAND.health_path(with_profile(health="/ping?deep=1")) == "/ping?deep=1"
    assert COMMAND.metrics(SPEC) is None
    names = MetricNames(path="/m", running=("r",))
    assert COMMAND.metrics(with_profile(metrics=names)) == names


def test_slots_are_the_profiles_and_are_not_asked_for() -> None:
    assert COMMAND.slots_path is None
    assert COMMAND.slots(b'{"total_slots":4}') is None


@pytest.mark.parametrize(
    ("status", "log", "cause"),
    [
        (3, "starting\nno licence\n\n", "exit status 3: no licence"),
        (0, "done\n", "ended by itself with exit status 0: done"),
        (1, "", "exit status 1, and wrote nothing"),
        (1, "the key is very-secret\n", "exit status 1: the key is ***"),
        (1, "\x1b[31mred\x1b[0m\n", "exit status 1: [31mred [0m"),
    ],
)
def test_a_failure_is_the_exit_status_and_the_last_line(status: int, log: str, cause: str) -> None:
    ended = COMMAND.ended(Exit(status=status, log=log), SPEC)
    assert (ended.cause, ended.port_taken) == (cause, False)


def test_a_signal_says_more_than_the_last_line() -> None:
    cause = COMMAND.ended(Exit(status=-9, log="serving\n"), SPEC).cause
    assert cause.startswith("killed by SIGKILL")


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        (
            "[Errno 98] attempting to bind on ('127.0.0.1', 21000): address already in use",
            True,
        ),
        ("Error: listen EADDRINUSE: address already in use 127.0.0.1:21000", True),
        ("listen tcp 127.0.0.1:21000: bind: address already in use", True),
        ("listen tcp 127.0.0.1:9090: bind: address already in use", False),
        ("listen tcp 127.0.0.1:121000: bind: address already in use", False),
        ("OSError: [Errno 98] Address already in use", False),
    ],
)
def test_a_port_is_taken_where_a_line_says_so_of_this_port(line: str, taken: bool) -> None:
    ended = COMMAND.ended(Exit(status=1, log=f"{line}\nbye\n"), SPEC)
    assert ended.port_taken is taken
    expected = "cannot listen on 127.0.0.1 port 21000: it is taken" if taken else "bye"
    assert ended.cause == f"exit status 1: {expected}"
