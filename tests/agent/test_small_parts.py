"""The agent's small parts, each alone."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.node import shard
from roost.agent import logs, models
from roost.agent.backoff import Backoff
from roost.agent.directory import Credential, Directory
from roost.agent.membership import Invitation, Membership
from roost.agent.programs import Programs
from roost.agent.server import Server
from roost.agent.supervise import log as engine_log
from roost.agent.supervise import process, procfs
from roost.agent.supervise.kept import Kept, Shelf, file_stem
from roost.agent.supervise.log import Log
from roost.agent.supervise.probe import parse_load
from roost.agent.supervise.process import Mark, environment
from roost.domain.profile import Engine, MetricNames
from roost.domain.replica import Desired, Load
from roost.errors import Conflict, Unavailable, Unusable
from roost.files import write_private
from roost.formats import agent_wire as wire

NAMES = MetricNames(
    running=("new:running", "old:running"), waiting=("e:waiting",), kv_usage=("new:kv", "old:kv")
)
CAPTURED = Path(__file__).parents[1] / "data" / "engines"


# -- metrics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "load"),
    [
        ("new:running 2\ne:waiting 1\nnew:kv 0.95\n", Load(running=2, waiting=1, kv_usage=0.95)),
        ("old:running 2\nold:kv 0.10\n", Load(running=2, kv_usage=0.10)),
        ("old:running 7\nnew:running 2\n", Load(running=2)),
        ('new:running{rank="0"} 2\nnew:running{rank="1"} 3\n', Load(running=5)),
        ('new:kv{rank="0"} 0.2\nnew:kv{rank="1"} 0.9\n', Load(kv_usage=0.9)),
        ("new:running_more 9\n", None),
        ("new:running NaN\ne:waiting 0\n", Load(waiting=0)),
        ("new:running -1\n", None),
        ("process_cpu_seconds_total 12\n", None),
        ("", None),
        ("<html>new:running</html>", None),
        ('new:running{a="b 2\n', None),
    ],
)
def test_load_is_read_from_a_metrics_page_and_what_is_missing_is_not_measured(
    page: str, load: Load | None
) -> None:
    assert parse_load(page, NAMES) == load


def test_a_captured_page_of_llama_cpp_gives_running_and_waiting_and_no_kv() -> None:
    names = MetricNames(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_usage=("llamacpp:kv_cache_usage_ratio",),
    )
    page = (CAPTURED / "llama.cpp-b10434-metrics-load.txt").read_text()
    assert parse_load(page, names) == Load(running=4, waiting=4)


@settings(deadline=None)
@given(st.text())
def test_no_metrics_page_raises(page: str) -> None:
    parse_load(page, NAMES)
    parse_load("new:running " + page, NAMES)


# -- logs --------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    lines=st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=30),
    tail=st.integers(0, 40),
    ended=st.booleans(),
    block=st.integers(1, 50),
)
def test_a_tail_is_the_last_lines_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], tail: int, ended: bool, block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "tail.log"
    text = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    path.write_bytes(text)
    start = logs.start_of_tail(path, tail, block=block)
    kept = text.split(b"\n")
    if kept and kept[-1] == b"":
        kept.pop()
        joined = [line + b"\n" for line in kept]
    else:
        joined = [line + b"\n" for line in kept[:-1]] + kept[-1:]
    assert text[start:] == (b"".join(joined[-tail:]) if tail else b"")


def test_a_tail_of_an_endless_line_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(3_000_000_000)
    start = logs.start_of_tail(path, 200)
    assert 3_000_000_000 - start == logs.MOST_TAIL_BYTES


@settings(deadline=None)
@given(
    text=st.lists(st.sampled_from([b"s", b"e", b"c", b"sec", b"ret", b"\n", b"x"]), max_size=40),
    cuts=st.lists(st.integers(1, 5), max_size=40),
)
def test_a_secret_never_passes_the_veil_wherever_the_stream_is_cut(
    text: list[bytes], cuts: list[int]
) -> None:
    whole = b"".join(text)
    veil, out, position = logs.Veil("sec"), b"", 0
    for size in [*cuts, len(whole)]:
        out += veil.through(whole[position : position + size])
        position += size
    out += veil.rest()
    assert out == whole.replace(b"sec", b"***")


def test_a_follower_sees_growth_a_new_run_a_cut_and_the_end(tmp_path: Path) -> None:
    log = Log(tmp_path / "p1.0.log")

    def write(text: str) -> None:
        handle = os.open(log.path, os.O_WRONLY | os.O_APPEND)
        os.write(handle, text.encode())
        os.close(handle)

    async def story() -> None:
        os.close(log.open())
        write("one\ntwo\n")
        chunks: AsyncIterator[bytes] = logs.stream(
            log.path, tail_lines=1, follow=True, secret="key"
        )

        async def until(end: bytes) -> bytes:
            got = b""
            async with asyncio.timeout(30):
                while not got.endswith(end):
                    got += await anext(chunks)
            return got

        assert await until(b"two\n") == b"two\n"
        write("three\rkey\n\xff")
        assert b"three\r***\n" in await until(b"\xbf")
        os.close(log.open())
        write("second run\n")
        assert b"started again" in await until(b"second run\n")
        log.path.write_bytes(b"")
        write("x\n")
        assert b"the log was cut" in await until(b"x\n")
        log.remove()
        async with asyncio.timeout(30):
            assert [chunk async for chunk in chunks] == []

    asyncio.run(story())


def test_a_log_over_its_cap_loses_its_beginning_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_log, "CAP_BYTES", 1000)
    monkeypatch.setattr(engine_log, "KEPT_BYTES", 100)
    log = Log(tmp_path / "p1.0.log")
    handle = log.open()
    os.write(handle, b"a" * 5000)
    log.trim()
    os.write(handle, b"after\n")
    os.close(handle)
    text = log.path.read_text()
    assert text.startswith("[roost: 4900 bytes of log were cut here]\n" + "a" * 100)
    assert text.endswith("after\n")
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_an_empty_run_does_not_push_out_the_log_of_the_one_before(tmp_path: Path) -> None:
    log = Log(tmp_path / "p1.0.log")
    handle = log.open()
    os.write(handle, b"why\n")
    os.close(handle)
    for _ in range(3):
        os.close(log.open())
    assert log.earlier(1).read_text() == "why\n"
    assert not log.earlier(2).exists()


def test_the_last_runs_are_kept_in_their_order_and_the_older_ones_only_by_their_end(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path / "p1.0.log")
    for number in range(engine_log.EARLIER_RUNS + 3):
        handle = log.open()
        os.write(handle, b"x" * engine_log.KEPT_BYTES + b"run %d\n" % number)
        os.close(handle)
    last = engine_log.EARLIER_RUNS + 2
    for back in range(engine_log.EARLIER_RUNS + 1):
        file = log.earlier(back)
        assert file.read_bytes().endswith(b"run %d\n" % (last - back))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        whole = engine_log.KEPT_BYTES + len(b"run 0\n")
        assert file.stat().st_size == (whole if back < 2 else engine_log.KEPT_BYTES)
    assert len(list(tmp_path.iterdir())) == engine_log.EARLIER_RUNS + 1
    log.remove()
    assert list(tmp_path.iterdir()) == []


# -- processes ---------------------------------------------------------------------------------------


def test_a_process_name_may_hold_anything() -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    found = procfs.parse_stat(f"77 (a) (b) R ) S 1 77 {fields}")
    assert (found.pid, found.state, found.group) == (77, "S", 77)
    mine = procfs.stat(os.getpid())
    assert mine is not None
    assert mine.lives
    assert mine.session == os.getsid(0)
    assert procfs.stat(2**22 + 1) is None


def test_an_engine_gets_its_own_things_and_no_secret_of_the_agents() -> None:
    mark = Mark(agent="a1", fleet="f1", placement="p1", rank=0)
    own = {"PATH": "/bin", "ROOST_JOIN_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "LC_ALL": "C"}
    env = environment(own, {"LLAMA_API_KEY": "k", "ROOST_PLACEMENT": "other"}, mark)
    assert env == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "LLAMA_API_KEY": "k",
        "ROOST_AGENT": "a1",
        "ROOST_FLEET": "f1",
        "ROOST_PLACEMENT": "p1",
        "ROOST_RANK": "0",
    }


def test_a_number_that_was_given_away_is_nobodys_engine(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        found = procfs.stat(child.pid)
        assert found is not None
        mark = Mark(agent="nobody", fleet="f", placement="p", rank=0)
        assert process.living(mark, (child.pid, found.started)) == (child.pid,)
        other = Mark(agent="nobody", fleet="f", placement="p", rank=0)
        assert process.kill(other, (child.pid, found.started - 1)) == ()
        assert child.poll() is None
        # The same number, and another start time: what it was is gone, and this one isn't touched.
        assert process.living(mark, (child.pid, found.started - 1)) == ()
        assert process.adopt(child.pid, found.started - 1) is None
    finally:
        child.kill()
        child.wait()


def test_what_the_driver_lists_is_the_engines_another_ones_or_vanished(tmp_path: Path) -> None:
    """A dead first process counts as there: threads of it may still hold the card."""
    child = subprocess.Popen(["true"], start_new_session=True)
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        found = procfs.stat(child.pid)
        assert found is not None
        assert not found.lives
        mark = Mark(agent="nobody", fleet="f", placement="p", rank=0)
        listed = (2**22 + 1, os.getpid(), child.pid)
        said = process.sorted_out(listed, mark, (child.pid, found.started))
        assert (said.ours, said.vanished) == ((child.pid,), (2**22 + 1,))
        # By marks alone it isn't: a dead process has none.
        assert process.sorted_out(listed, mark, None).ours == ()
    finally:
        child.wait()


def test_an_engine_gets_limits_of_its_own_and_nothing_of_the_agents(tmp_path: Path) -> None:
    """No descriptor, terminal, session or core; all files it may have, and the kernel's first
    choice when memory is out. Its children have the same.
    """
    code = """
import json, os, resource, sys, time
while resource.getrlimit(resource.RLIMIT_CORE)[0] or score() == own: time.sleep(0.01)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
os.close(os.open(made, os.O_CREAT | os.O_WRONLY, 0o666))
print(json.dumps({
    "fds": sorted(os.listdir("/proc/self/fd")),
    "stdin": os.readlink("/proc/self/fd/0"),
    "leads a session": os.getsid(0) == os.getpid(),
    "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
    "all files": soft == hard,
    "oom": score() - own,
    "mode": oct(os.stat(made).st_mode & 0o777),
    "env": sorted({*os.environ} - {"LC_CTYPE"}),  # which Python itself may add
    "directory": os.getcwd(),
    "blocked": [line for line in open("/proc/self/status") if line.startswith("SigBlk")],
}))
"""
    own = int(Path("/proc/self/oom_score_adj").read_text())
    made = str(tmp_path / "made")
    given = (
        f"own, made = {own}, {made!r}\n"
        "score = lambda: int(open('/proc/self/oom_score_adj').read())\n"
    )

    async def story() -> str:
        out = tmp_path / "out"
        secret = os.open(tmp_path / "credential", os.O_CREAT | os.O_RDWR)
        os.set_inheritable(secret, True)
        log = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        mark = Mark(agent="a1", fleet="f1", placement="p1", rank=0)
        env = environment({"ROOST_JOIN_TOKEN": "t", "PATH": "/usr/bin"}, {}, mark)
        started = process.launch((sys.executable, "-c", given + code), env, log)
        async with asyncio.timeout(60):
            await started.over.wait()
        started.close()
        os.close(secret)
        os.close(log)
        assert started.status == 0, out.read_text()
        return out.read_text()

    said = json.loads(asyncio.run(story()))
    assert said.pop("env") == [
        *("PATH", "ROOST_AGENT", "ROOST_FLEET", "ROOST_PLACEMENT", "ROOST_RANK"),
    ]
    assert said.pop("blocked") == ["SigBlk:\t0000000000000000\n"]
    assert said == {
        "fds": ["0", "1", "2", "3"],  # the last is the listing itself
        "stdin": "/dev/null",
        "leads a session": True,
        "core": 0,
        "all files": True,
        "oom": min(200, 1000 - own),
        "mode": "0o600",
        "directory": "/",
    }


# -- files -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.text(min_size=1, max_size=300), st.integers(0, 63))
def test_any_placement_is_one_plain_file_name(placement: str, rank: int) -> None:
    try:
        placement.encode()
    except UnicodeEncodeError:
        return
    stem = file_stem(placement, rank)
    assert "/" not in stem
    assert "\0" not in stem
    assert not stem.startswith(".")
    assert len(stem) < 200


def test_what_is_kept_of_an_engine_comes_back_and_a_broken_file_is_a_sentence(
    tmp_path: Path,
) -> None:
    shelf = Shelf(tmp_path)
    kept = Kept(spec=shard("a/b"), up=True, pid=7, started=9, boot_id="b", restarts=3, cause="x")
    shelf.write(kept)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(shelf.read()) == [kept]
    newer = json.loads(path.read_text()) | {"a_new_key": 1}
    path.write_text(json.dumps(newer))
    assert list(shelf.read()) == [kept]
    path.write_text("{")
    (sentence,) = shelf.read()
    assert isinstance(sentence, str)
    assert "cannot be read" in sentence
    shelf.remove("a/b", 0)
    assert list(shelf.read()) == []


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_private(path, b"one")
    with pytest.raises(TypeError):
        write_private(path, "no bytes")  # type: ignore[arg-type]  # as a full disk would, it fails midway
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_keeps_what_it_is_given_and_lets_one_agent_in(tmp_path: Path) -> None:
    one, two = Directory(tmp_path), Directory(tmp_path)
    one.lock()
    with pytest.raises(Conflict, match=rf"another agent works on .* \(process {os.getpid()}\)"):
        two.lock()
    assert one.identity() == two.identity()
    assert one.credential() is None
    assert one.desired() is None
    credential = Credential(server="s", fleet="f", node="n", credential="very-secret")
    one.keep_credential(credential)
    assert two.credential() == credential
    assert "very-secret" not in repr(credential)
    desired = Desired(fleet="f", incarnation=1, epoch=2, revision=3, run=(shard(),))
    one.keep_desired(desired)
    assert two.desired() == desired
    (tmp_path / "agent" / "desired.json").write_text("{")
    with pytest.raises(Unusable, match=r"desired\.json cannot be read"):
        one.desired()


# -- models and programs -----------------------------------------------------------------------------


def test_what_a_token_bought_outlives_a_disk_that_does_not_take_it(tmp_path: Path) -> None:
    class Selling(Server):
        async def join(self, join: wire.Join) -> wire.Joined:
            return wire.Joined(fleet="fleet-1", node=join.name, credential="bought")

    async def story() -> None:
        directory = Directory(tmp_path)
        server = Selling("http://127.0.0.1:1")
        invitation = Invitation(name="node-a", token="token-1")
        member = Membership(
            server, directory, invitation, luck=lambda: 0.5, joined_again=lambda: None
        )
        member.restore()
        (directory.path / "credential.json").mkdir()  # nothing can be written there
        await member.begin()
        assert member.credential is not None
        assert member.credential.credential == "bought"
        (directory.path / "credential.json").rmdir()
        member.keep()
        assert directory.credential() == member.credential
        await server.close()

    asyncio.run(story())


def test_a_source_is_found_in_the_first_model_directory_that_has_it(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        (directory / "sub").mkdir(parents=True)
    (second / "sub" / "m.gguf").touch()
    assert models.resolve("sub/m.gguf", [first, second]) == second / "sub" / "m.gguf"
    (first / "sub" / "m.gguf").touch()
    assert models.resolve("sub/m.gguf", [first, second]) == first / "sub" / "m.gguf"
    assert models.resolve("/x/y.gguf", [first]) == Path("/x/y.gguf")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("../etc/passwd", r"leaves the model directories"),
        ("a/../../x", r"leaves the model directories"),
        ("/models/../etc", r"leaves the model directories"),
        ("m\0.gguf", r"NUL"),
        ("hf:org/model", r"does not download"),
        ("gone.gguf", r"no gone.gguf in the model directories of this node \(/nowhere\)"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused_with_the_reason(source: str, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        models.resolve(source, [Path("/nowhere")])


def test_a_real_llama_server_is_preferred_to_the_launcher(tmp_path: Path) -> None:
    real = tmp_path / "llama-server"
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    here = Programs(env={"PATH": str(tmp_path)})
    assert here.start_of(Engine.LLAMA_CPP) == (str(real),)
    elsewhere = Programs(env={"PATH": "/nowhere"})
    assert elsewhere.start_of(Engine.LLAMA_CPP)[-2:] == ("-m", "roost.agent.llama_server")


@pytest.mark.parametrize(
    ("engine", "option"),
    [
        (Engine.LLAMA_CPP, "llama_server"),
        (Engine.VLLM, "vllm"),
        (Engine.SGLANG, "sglang"),
    ],
)
def test_a_program_that_is_named_is_used_or_said_to_be_none(
    tmp_path: Path, engine: Engine, option: str
) -> None:
    program = tmp_path / "program"
    named = Programs(env={"PATH": "/nowhere"}, **{option: program})  # type: ignore[arg-type]
    flag = f"--{option.replace('_', '-')}"

    def refused() -> str:
        with pytest.raises(Unavailable, match="is not a program that can be run") as why:
            named.start_of(engine)
        found, problems = named.installed()
        assert engine.value not in found
        assert problems == [why.value.message]
        assert problems[0].startswith(f"{flag} {program} is not")
        assert problems[0].endswith(f"change {flag} or, in roost.toml, {option} of [agent]")
        return problems[0]

    assert "there is no such file" in refused()
    program.mkdir()
    assert "it is a directory" in refused()
    program.rmdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o644)
    assert f"it is not executable (chmod +x {program})" in refused()
    program.chmod(0o755)
    assert named.start_of(engine) == (str(program),)
    assert engine.value in named.installed()[0]
    assert named.installed()[1] == []


def test_an_engine_that_is_not_here_is_missing_without_a_word_and_says_how_to_get_it() -> None:
    bare = Programs(env={"PATH": "/nowhere"})
    assert bare.installed() == (frozenset({"llama.cpp"}), [])
    for engine in (Engine.VLLM, Engine.SGLANG):
        with pytest.raises(Unavailable, match="this node has no") as missing:
            bare.start_of(engine)
        assert missing.value.hint


def test_vllm_is_found_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    (tmp_path / "vllm").chmod(0o755)
    here = Programs(env={"PATH": str(tmp_path)})
    assert here.start_of(Engine.VLLM) == (str(tmp_path / "vllm"),)
    assert "vllm" in here.installed()[0]


# -- retries -----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(luck=st.floats(0, 1, exclude_max=True), failures=st.integers(1, 200))
def test_retries_grow_to_a_limit_and_are_spread(luck: float, failures: int) -> None:
    backoff = Backoff(lambda: luck, first=0.5, longest=30)
    pauses = [backoff.next() for _ in range(failures)]
    assert all(a <= b for a, b in pairwise(pauses))
    assert 0.25 <= pauses[0] <= 0.5
    assert pauses[-1] <= 30
    backoff.worked()
    assert not backoff.failing
    assert backoff.next() <= 0.5
