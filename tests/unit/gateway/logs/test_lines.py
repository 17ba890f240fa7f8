"""Log lines from raw output: control characters, line prefixes, and the split of long lines."""

import time

import pytest

from mlplatform_gateway.logs.lines import PART_BYTES, LogSource, is_noise, log_name, plain, split

NODE = "ray-worker-0"
WORKER = f"worker-{'ab' * 28}-01000000-4711.out"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mloss\x1b[0m 0.5", "loss 0.5"),
        ("\x1b]0;title\x07epoch\x1b]8;;http://x\x1b\\ 1", "epoch 1"),
        ("\x9b31mred\x1b[K", "red"),
        (" 10%|#    |\r 50%|###  |\r100%|#####|", "100%|#####|"),
        ("from a DOS file\r", "from a DOS file"),
        ("a bar that cleans up\r                    \r", None),
        ("bell\x07 and\x00 tab\t.", "bell and tab\t."),
        ("", ""),
        ("unfinished \x1b[", "unfinished "),
        ("\x1b]" * 30_000, ""),
        ("\x90half\x9c \u202eesrever\u202c \u2066isolated\u2069", "half esrever isolated"),
    ],
)
def test_line_is_stored_as_terminal_shows_it(raw: str, shown: str | None) -> None:
    started = time.monotonic()
    assert plain(raw) == shown
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-21 08:44:00,123 E 1 2] (raylet) gcs_rpc_client.h:179: Failed to connect to GCS within 5 seconds.",
        "[2026-11-21 08:44:00,123 W 4321 4399] core_worker.cc:512: Failed to report worker.",
        "[2026-11-21 08:44:00,123 I 1 2 (gcs_server)] gcs_node_manager.cc:1: Node died.",
        "(raylet, ip=172.18.0.4) Spilled 3 MiB.",
        "(pid=gcs_server) Health check failed.",
    ],
)
def test_control_plane_lines_are_dropped(line: str) -> None:
    assert is_noise(line)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-21 08:44:00,123 C 1 2] core_worker.cc:512: Check failed: false",
        "2026-11-21 08:44:00,123\tINFO worker.py:2038 -- Connected to Ray cluster.",
        "[2026-11-21 08:44:00] epoch 1",
        "my own (raylet) line",
    ],
)
def test_job_lines_are_kept(line: str) -> None:
    assert not is_noise(line)


def test_log_file_names_identify_their_job() -> None:
    rotated = [WORKER, WORKER.replace(".out", ".2.out"), f"{WORKER}.3"]
    assert [(name.file, name.age, name.ray_job) for name in map(log_name, rotated) if name] == [
        (WORKER, 0, "01000000"),
        (WORKER, 2, "01000000"),
        (WORKER, 3, "01000000"),
    ]
    assert log_name("job-driver-a.b--2-ffffff.log").ray_id == "a.b--2-ffffff"  # type: ignore[union-attr]
    assert log_name("job-driver-a:b@c+d--2-ffffff.log").ray_id == "a:b@c+d--2-ffffff"  # type: ignore[union-attr]
    others = ["raylet.out", "job-driver-../x.log", "worker-00-01000000-1.out", "python-core-worker-1_2.log", "x.log"]
    assert [name for name in others if log_name(name)] == []


def test_long_line_splits_at_characters_and_carriage_returns() -> None:
    body = ("é" * PART_BYTES).encode()
    pieces, rest = split(body)
    assert all("\ufffd" not in raw.decode() for raw, _ in pieces)
    assert len(body) - pieces[-1][1] <= PART_BYTES
    assert rest == pieces[-1][1]

    bar = b"".join(b"\r%6d%%" % step for step in range(20_000))
    assert split(bar) == ([], bar.rindex(b"\r"))


def test_worker_lines_have_rays_prefix() -> None:
    name = log_name(WORKER)
    assert name
    source = LogSource(NODE, name, "train")
    lines = [b":job_id:01000000", b"early", b":actor_name:RayTrainWorker", b"hi\r", b":task_name:load", b"x", b"\xff"]
    assert [line for raw in lines if (line := source.format_line(raw))] == [
        "(pid=4711, ray-worker-0) early",
        "(RayTrainWorker pid=4711, ray-worker-0) hi",
        "(RayTrainWorker pid=4711, ray-worker-0) x",
        "(RayTrainWorker pid=4711, ray-worker-0) \ufffd",
    ]
