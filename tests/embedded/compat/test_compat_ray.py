"""Private and developer APIs of Ray that the package uses; a failing test names what an upgrade has changed."""

from __future__ import annotations

import inspect
import json
import logging
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import job_client

from mlplatform.compat import ray_actors, ray_commands, ray_core, ray_jobs, ray_runtime_env_agent, ray_setup_worker
from mlplatform.storage import checkpoint_layout as layout
from mlplatform_gateway.jobs import attempt_tokens


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ray._private.runtime_env.constants.RAY_JOB_CONFIG_JSON_ENV_VAR", ray_core.JOB_CONFIG),
        ("ray._private.ray_constants.RAY_START_HOOK", ray_commands.START_HOOK),
        ("ray._private.ray_constants.RAY_JOB_HEADERS", ray_jobs.HEADERS),
        ("ray._private.ray_constants.RAY_API_SERVER_ADDRESS_ENVIRONMENT_VARIABLE", attempt_tokens.ADDRESS),
        ("ray._private.ray_constants.RAY_JOB_SUBMIT_HOOK", "RAY_JOB_SUBMIT_HOOK"),
        ("ray._private.ray_constants.RAY_RUNTIME_ENV_DEFAULT_EXCLUDES", ".git,.venv,venv,__pycache__"),
        ("ray.train.v2._internal.constants.CHECKPOINT_MANAGER_SNAPSHOT_FILENAME", layout.SNAPSHOT),
        ("ray.train._checkpoint._METADATA_FILE_NAME", layout.METADATA),
    ],
)
def test_copied_constants_equal_rays(name: str, value: str) -> None:
    module, _, constant = name.rpartition(".")
    assert getattr(import_module(module), constant) == value


def test_cli_hooks_receive_arguments_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services
    from ray._private.node import Node
    from ray._private.parameter import RayParams
    from ray.dashboard.modules.job import cli
    from ray.job_submission import JobSubmissionClient

    for owner, name in ((services, "start_ray_process"), (Node, "dead_processes")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    given = RayParams()
    given.ray_client_server_port = 10001
    ray_commands.disable_client_server(given)
    ray_commands.prepare_node(given)
    assert given.ray_client_server_port is None
    assert given.setup_worker_path == ray_setup_worker.__file__
    metadata = inspect.signature(JobSubmissionClient.submit_job).parameters["metadata"]
    assert (metadata.kind, metadata.default) == (metadata.KEYWORD_ONLY, None)
    assert {"entrypoint", "working_dir", "runtime_env", "runtime_env_json"} <= set(parameters(cli.submit.callback))


def test_client_of_job_sends_the_attempts_headers_or_given_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.job_submission import JobSubmissionClient

    assert parameters(JobSubmissionClient.__init__)[5] == "headers", "ray_jobs counts its arguments"
    monkeypatch.setattr(JobSubmissionClient, "_check_connection_and_version", lambda *_, **__: None)
    monkeypatch.setenv(ray_jobs.HEADERS, '{"Authorization": "Bearer attempt"}')
    address = "http://gateway:8265"
    assert "Bearer attempt" not in str(JobSubmissionClient(address)._headers), "outside of jobs, Ray ignores it"
    monkeypatch.setenv(ray_jobs.OF_ATTEMPT, "attempt")
    assert JobSubmissionClient(address)._headers["Authorization"] == "Bearer attempt"
    own = {"Authorization": "Bearer own"}
    for client in (JobSubmissionClient(address, headers=own), JobSubmissionClient(address, False, None, None, own)):
        assert client._headers["Authorization"] == "Bearer own"


def test_state_api_of_job_asks_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.dashboard import utils
    from ray.util.state import api

    monkeypatch.setenv(attempt_tokens.ADDRESS, "http://gateway:8265")
    assert api.StateApiClient("10.0.0.9:6379")._address == "http://gateway:8265"
    monkeypatch.setenv(ray_jobs.OF_ATTEMPT, "attempt")
    monkeypatch.setattr(utils, "ray_address_to_api_server_url", lambda address: f"http://head-of-{address}")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert api.StateApiClient()._address == "http://head-of-10.0.0.1:6379"
    monkeypatch.delenv("RAY_ADDRESS")
    assert api.StateApiClient("http://ray-head:8265")._address == "http://ray-head:8265"
    # Nodes of the embedded platform have the gateway's address, too; there, Ray Train's cleaner got 401, and died.
    monkeypatch.setenv("RAY_ADDRESS", "http://gateway:8265")
    assert api.StateApiClient()._address == "http://head-of-None"


class Table:
    """Ray's table of keys and values, in memory."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    async def async_internal_kv_get(self, key: bytes, **_: Any) -> bytes | None:
        return self.values.get(key)

    async def async_internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, **_: Any) -> int:
        added = key not in self.values
        if added or overwrite:
            self.values[key] = value
        return int(added)


async def test_late_monitor_does_not_replace_exit_code() -> None:
    from ray.dashboard.modules.job.common import JobErrorType, JobInfo, JobInfoStorageClient, JobStatus

    table: Any = Table()
    client = JobInfoStorageClient(table)
    await client.put_info("mine", JobInfo(status=JobStatus.RUNNING, entrypoint="exit 7"))
    failed = {"error_type": JobErrorType.JOB_ENTRYPOINT_COMMAND_ERROR, "driver_exit_code": 7}
    await client.put_status("mine", JobStatus.FAILED, **failed)
    for late in (JobStatus.FAILED, JobStatus.SUCCEEDED):
        await client.put_status("mine", late, error_type=JobErrorType.JOB_SUPERVISOR_ACTOR_START_FAILURE)
    info = await client.get_info("mine")
    assert info is not None
    assert (info.status, info.driver_exit_code) == (JobStatus.FAILED, 7)


WORKER = """
import os, sys
names = ("ONE", "TWO", "PATH", "LANGUAGE", "PWD", "OLDPWD")
print(sys.argv[1:], sys.flags.no_user_site, [os.environ.get(name) for name in names], os.getcwd())
"""


@pytest.mark.parametrize(
    ("context", "arguments"),
    [
        ({}, ["worker.py", "--node-ip-address=127.0.0.1", "--language=PYTHON"]),
        ({}, ["-s", "worker.py", "a b", "$HOME", "--language=PYTHON", "'quoted'"]),
        ({"env_vars": {"ONE": "1", "TWO": "${ONE}/${NONE}$ONE", "PATH": "/first:${PATH}"}}, ["worker.py"]),
        ({"command_prefix": ["export ONE=prefix;", "cd /;"]}, ["worker.py", "a b"]),
        ({"command_prefix": ["cd", "/usr/lib", "&&"]}, ["worker.py", "a b"]),
        ({"command_prefix": ["cd", "/usr/lib", "&&"], "env_vars": {"PWD": "/elsewhere"}}, ["worker.py"]),
        ({"py_executable": f"env TWO=2 {sys.executable}"}, ["worker.py"]),
        ({"override_worker_entrypoint": "other.py"}, ["worker.py", "x"]),
    ],
)
def test_setup_worker_executes_what_rays_executes(
    context: dict[str, Any], arguments: list[str], tmp_path: Path
) -> None:
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.workers import setup_worker

    for name in ("worker.py", "other.py"):
        (tmp_path / name).write_text(f"print({name!r})\n{WORKER}")
    whole = RuntimeEnvContext(**context).serialize()
    words = [f"{tmp_path}/{word}" if word == "worker.py" else word for word in arguments]
    if "override_worker_entrypoint" in context:
        whole = whole.replace("other.py", f"{tmp_path}/other.py")
    if "--language=PYTHON" not in words:
        words.append("--language=PYTHON")
    words.append(f"{ray_setup_worker.CONTEXT}{whole}")
    ours, theirs = (
        subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True, cwd=tmp_path)
        for script in (ray_setup_worker.__file__, setup_worker.__file__)
    )
    assert ours.stdout == theirs.stdout != ""


def test_setup_worker_leaves_unknown_context_to_ray() -> None:
    words = ["worker.py", "--language=PYTHON", f"{ray_setup_worker.CONTEXT}{json.dumps({'new': 1})}"]
    done = subprocess.run([sys.executable, ray_setup_worker.__file__, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert "got an unexpected keyword argument 'new'" in done.stderr


def test_setup_worker_does_not_import_ray(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("")
    words = ["-X", "importtime", ray_setup_worker.__file__, "worker.py", "--language=PYTHON"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert not {"ray", "pydantic", "argparse"} & {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_submission_metadata_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.job_submission import JobSubmissionClient

    sent: list[Any] = []
    monkeypatch.setattr(JobSubmissionClient, "submit_job", lambda self, **options: sent.append(options))
    ray_jobs.add_job_metadata({"user": "ada", "note": "none"})
    client: Any = JobSubmissionClient.__new__(JobSubmissionClient)
    client.submit_job(entrypoint="python a.py", metadata={"note": "mine"})
    client.submit_job(entrypoint="python b.py")
    assert [options["metadata"] for options in sent] == [{"user": "ada", "note": note} for note in ("mine", "none")]


def test_client_of_benchmark_uses_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.job_submission import JobSubmissionClient

    asked: list[str] = []
    check = "_check_connection_and_version"
    monkeypatch.setattr(JobSubmissionClient, check, lambda self, *_, **__: asked.append(self._address))
    monkeypatch.setenv("RAY_ADDRESS", "http://gateway:8265")
    JobSubmissionClient("http://ray-head:8265")
    job_client("http://ray-head:8265")
    # Ray's client prefers the variable, so the gateway was once compared with itself.
    assert list(dict.fromkeys(asked)) == ["http://gateway:8265", "http://ray-head:8265"]


def test_grafana_dashboards_are_generated(tmp_path: Path) -> None:
    files = ray_commands.write_dashboards(tmp_path)
    assert [file.stem for file in files] == ["ray-core", "ray-train", "ray-data", "ray-serve", "ray-serve-deployment"]
    assert all(json.loads(file.read_text())["panels"] for file in files)


def test_process_is_described_without_ray_connection() -> None:
    assert ray_core.is_worker() is False
    assert ray_core.job_metadata() == {}
    assert ray_core.train_ranks() is None


def test_worker_description_has_expected_fields() -> None:
    import ray
    from ray._private.worker import Worker
    from ray._raylet import CoreWorker
    from ray.core.generated.common_pb2 import JobConfig
    from ray.runtime_context import RuntimeContext
    from ray.train.v2.api.context import TrainContext

    assert {"worker"} <= set(parameters(RuntimeContext.__init__))
    assert isinstance(ray.WORKER_MODE, int)
    assert "mode" in vars(Worker())
    assert hasattr(CoreWorker, "get_job_config")
    assert "metadata" in JobConfig.DESCRIPTOR.fields_by_name
    assert hasattr(TrainContext, "get_world_rank")
    assert hasattr(TrainContext, "get_local_rank")


def test_exit_from_signal_handler_is_recognized_by_its_message() -> None:
    from ray import _raylet

    with pytest.raises(SystemExit) as from_handler:
        _raylet.raise_sys_exit_with_custom_error_message("SystemExit is raised (sys.exit is called). Exit code: 15.", 1)
    assert ray_core.is_exit_from_signal_handler(from_handler.value)
    with pytest.raises(SystemExit) as otherwise:
        _raylet.raise_sys_exit_with_custom_error_message("exit_actor() is called.")
    assert not ray_core.is_exit_from_signal_handler(otherwise.value)
    assert not ray_core.is_exit_from_signal_handler(SystemExit(1))
    assert b"SystemExit is raised (sys.exit is called)." in Path(_raylet.__file__).read_bytes()


def test_failing_ray_query_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    changed = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray", changed)
    ray_core._report.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert ray_core.job_metadata() == {}
    assert caplog.text.count("could not report the job's metadata (AttributeError(") == 1


def test_train_callback_hooks_exist() -> None:
    from mlplatform.compat import ray_train
    from mlplatform.training.reports import Reports
    from mlplatform.training.workers import WorkerSetup
    from mlplatform.tuning.search import Drain

    hooks = {
        ray_train.WorkerGroupCallback: {"before_worker_group_start": 1, "after_worker_group_start": 1},
        ray_train.ReportCallback: {"after_report": 2},
        ray_train.ControllerCallback: {
            "after_controller_start": 1,
            "before_controller_shutdown": 0,
            "before_controller_abort": 0,
        },
        ray_train.WorkerCallback: {"after_init_train_context": 0},
    }
    for callback, methods in hooks.items():
        for name, count in methods.items():
            assert len(parameters(getattr(callback, name))) == 1 + count, name
            for ours in (Reports, WorkerSetup, Drain):
                if name in vars(ours):
                    assert len(parameters(vars(ours)[name])) == 1 + count, f"{ours.__name__}.{name}"
    assert inspect.iscoroutinefunction(ray_train.ControllerCallback.before_controller_shutdown)


def test_reports_precede_listing_of_their_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
    from ray.train.v2._internal.execution.checkpoint.report_handler import ReportCallbackHandler

    from mlplatform.compat import ray_train

    class Ours(ray_train.ReportCallback):  # type: ignore[misc]
        pass

    class Theirs(ray_train.ReportCallback):  # type: ignore[misc]
        pass

    start = ReportCallbackHandler.after_worker_group_start
    monkeypatch.setattr(ReportCallbackHandler, "after_worker_group_start", start)
    ray_train.report_before_listing(Ours)
    # Without __init__, which needs a storage.
    callbacks = [CheckpointManager.__new__(CheckpointManager), Theirs(), Ours()]
    handler = ReportCallbackHandler(list(callbacks))
    for _ in range(2):  # a group and its restart
        handler.after_worker_group_start([])
        assert handler._report_callbacks == [callbacks[2], callbacks[0], callbacks[1]]


def test_train_context_has_patched_attributes() -> None:
    from ray.train.v2._internal.execution.context import TrainContext
    from ray.train.v2._internal.execution.storage import StorageContext

    names = {"metrics", "checkpoint", "checkpoint_upload_mode", "checkpoint_upload_fn"}
    assert names <= set(parameters(TrainContext.report))
    assert "storage_context" in TrainContext.__dataclass_fields__
    assert parameters(StorageContext.build_checkpoint_path_from_name) == ["self", "checkpoint_name"]
    assert "storage_filesystem" in parameters(StorageContext.__init__)
    assert StorageContext.make_default_checkpoint_dir_name().startswith(layout.FOLDER_PREFIX)


def test_train_checkpoint_state_has_expected_keys() -> None:
    from ray.train.v2._internal.execution.checkpoint import checkpoint_manager

    state = set(checkpoint_manager._CheckpointManagerState.model_fields)
    assert {layout.LATEST, layout.RESULTS, layout.PENDING} <= state
    assert {layout.FOLDER, layout.METRICS} <= set(checkpoint_manager._TrainingResultState.model_fields)


def test_ineffective_report_functions_exist() -> None:
    from ray import tune
    from ray.air import session
    from ray.train._internal import session as train_session
    from ray.tune.trainable import trainable_fn_utils

    assert session.report is train_session.report
    assert tune.report is trainable_fn_utils.report


def test_tune_session_has_report_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.tune.integration import ray_train as integration

    from mlplatform.compat import ray_tune

    queue = object()
    session = SimpleNamespace(_get_or_create_inter_actor_queue=lambda: queue)
    monkeypatch.setattr(integration, "_in_tune_session", lambda: True)
    monkeypatch.setattr(integration, "get_session", lambda: session)
    assert ray_tune.report_queue(integration.TuneReportCallback()) is queue


def test_tune_snapshot_files_have_expected_names(tmp_path: Path) -> None:
    from ray.tune.execution.experiment_state import _find_newest_experiment_checkpoint
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.impl.tuner_internal import _TUNER_PKL

    from mlplatform.compat import ray_tune

    snapshot = TuneController.CKPT_FILE_TMPL.format("2026-11-21_00-00-00")
    assert callable(_find_newest_experiment_checkpoint)
    assert ray_tune.is_begun({_TUNER_PKL, snapshot})
    assert not ray_tune.is_begun({_TUNER_PKL})


def test_tune_schedulers_have_expected_attributes() -> None:
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandForBOHB, MedianStoppingRule

    from mlplatform.compat import ray_tune

    assert ray_tune.schedule_length(ASHAScheduler(max_t=50, time_attr="epoch")) == ("epoch", 50)
    assert ray_tune.schedule_length(HyperBandForBOHB(max_t=50)) == ("training_iteration", 50)
    for without in (MedianStoppingRule(), ASHAScheduler(max_t=50, stop_last_trials=False), FIFOScheduler()):
        assert ray_tune.schedule_length(without) is None


def test_raylet_gets_port_of_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray._private import services

    started: list[list[str]] = []
    monkeypatch.setattr(services, "start_ray_process", lambda command, process_type, **options: started.append(command))
    ray_commands.change_raylet(52365)
    start: Any = services.start_ray_process
    agent = str(ray_runtime_env_agent.private("runtime_env/agent/main.py"))
    assert Path(agent).is_file()
    start(["raylet", f"--runtime_env_agent_command=python -u {agent}"], "raylet", fate_share=False)
    start(["gcs_server"], "gcs_server", fate_share=True)
    ours = f"--runtime_env_agent_command=python -u {ray_runtime_env_agent.__file__}"
    assert started == [["raylet", ours, "--dashboard_agent_listen_port=52365"], ["gcs_server"]]
    raylet = Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet"
    shown = subprocess.run([raylet, "--help"], capture_output=True, text=True).stdout
    assert "-dashboard_agent_listen_port" in shown
    # Ray passes the other three itself.
    source = inspect.getsource(services.start_raylet)
    for option in ("--metrics-agent-port=", "--metrics_export_port=", "--runtime_env_agent_port="):
        assert source.count(option) >= 1


@pytest.mark.parametrize(
    "name",
    [
        "ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator._AutoscalingCoordinatorActor",
        "ray.data._internal.execution.node_trackers.actor_location.ActorLocationTracker",
        "ray.data._internal.memory_tracing._MemActor",
        "ray.data._internal.stats._StatsActor",
        "ray.data._internal.stats_summary_actor._StatsSummaryActor",
        "ray.data._internal.usage.actor._UsageCollectionActor",
        "ray.train.v2._internal.state.state_actor.TrainStateActor",
        "ray.train.v2._internal.execution.controller.placement_group_cleaner.PlacementGroupCleaner",
    ],
)
def test_detached_actors_of_libraries_are_known(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert kind in ray_actors.SHARED | {ray_actors.CLEANER}
    assert hasattr(import_module(module), kind)


def test_head_ends_actors_by_id() -> None:
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.services import canonicalize_bootstrap_address_or_die
    from ray.core.generated import gcs_service_pb2

    fields = gcs_service_pb2.KillActorViaGcsRequest.DESCRIPTOR.fields_by_name
    assert set(fields) == {"actor_id", "force_kill", "no_restart"}
    assert parameters(init_grpc_channel)[0] == "address"
    assert parameters(canonicalize_bootstrap_address_or_die)[0] == "addr"
