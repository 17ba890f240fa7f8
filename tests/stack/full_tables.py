"""Thousands of ended jobs and runs in the stack's databases, as a platform that has been used for long has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from host import Stack

# Ended jobs as the gateway stores them: each with an attempt and driver information, a kilobyte in the list.
_JOBS = """
INSERT INTO jobs (id, "user", entrypoint, runtime_env, job_metadata, entrypoint_request, wait_for_capacity,
    max_restarts_on_loss, max_restarts_on_failure, job_class, state, message, losses, failures, preemptions,
    stop_requested, created, not_before, ended, exit_code, runs_closed)
SELECT 'long-list-' || n, 'someone', 'python train.py --epochs 10',
    '{{"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip", "env_vars": {{"MLPLATFORM_USER": "someone"}}}}',
    '{{"user": "someone", "commit": "0123456789abcdef0123456789abcdef01234567", "command": "python train.py"}}',
    '{{"entrypoint_num_gpus": 1}}', false, 3, 0, 'normal', 'SUCCEEDED', 'Job finished successfully.', 0, 0, 0,
    false, now(), now(), now(), 0, true
FROM generate_series(1, {count}) AS n;
INSERT INTO attempts (job_id, number, ray_submission_id, created, accepted, running, ended, outcome, reason, exit_code,
    leave_fails, node_id, node, agent, ray_job_id, driver, in_ray, runs_closed)
SELECT 'long-list-' || n, 1, 'long-list-' || n || '--1-012345', now(), true, true, now(), 'SUCCEEDED',
    'Job finished successfully.', 0, false, 'ab0123456789', 'ray-worker-0', 'http://10.0.0.2:52365', 'long' || n,
    '{{"id": "01000000", "node_ip_address": "10.0.0.2", "pid": "1234"}}', false, true
FROM generate_series(1, {count}) AS n;
"""
_NO_JOBS = "DELETE FROM jobs WHERE id LIKE 'long-list-%';"

# Ended runs of jobs, spread over experiments.
_RUNS = """
INSERT INTO experiments (name, artifact_location, lifecycle_stage, creation_time, last_update_time)
SELECT 'many-runs-' || n, 'mlflow-artifacts:/many-runs-' || n, 'active', 1790000000000 + n, 1790000000000 + n
FROM generate_series(1, {experiments}) AS n;
WITH filled AS (SELECT array_agg(experiment_id) AS ids FROM experiments WHERE name LIKE 'many-runs-%')
INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time, end_time,
    source_version, lifecycle_stage, artifact_uri, experiment_id)
SELECT md5('many-runs-' || n), 'many-runs-' || n, 'LOCAL', '', '', 'someone', 'FINISHED', 1790000000000 + n,
    1790000000000 + n, '', 'active', 'mlflow-artifacts:/0/' || md5('many-runs-' || n) || '/artifacts',
    ids[1 + n % {experiments}]
FROM generate_series(1, {runs}) AS n, filled;
INSERT INTO tags (key, value, run_uuid)
SELECT key, replace(value, '#', n::text), md5('many-runs-' || n)
FROM generate_series(1, {runs}) AS n,
    (VALUES ('mlplatform.job_id', 'many-runs-#'), ('mlplatform.role', 'job'), ('mlplatform.attempt', '1'))
    AS t(key, value);
ANALYZE experiments, runs, tags;
"""
_NO_RUNS = """
DELETE FROM tags WHERE run_uuid IN (SELECT run_uuid FROM runs WHERE name LIKE 'many-runs-%');
DELETE FROM runs WHERE name LIKE 'many-runs-%';
DELETE FROM experiments WHERE name LIKE 'many-runs-%';
"""


def many_jobs(stack: Stack, count: int) -> AbstractContextManager[None]:
    """Add ended jobs to the gateway's database, and delete them at the end."""
    return _filled(stack, "gateway", _JOBS.format(count=count), _NO_JOBS)


def many_runs(stack: Stack, runs: int, experiments: int) -> AbstractContextManager[None]:
    """Add experiments with ended runs to MLflow's database, and delete them at the end."""
    return _filled(stack, "mlflow", _RUNS.format(runs=runs, experiments=experiments), _NO_RUNS)


@contextmanager
def _filled(stack: Stack, database: str, fill: str, empty: str) -> Iterator[None]:
    _sql(stack, database, empty + fill)
    try:
        yield
    finally:
        _sql(stack, database, empty)


def _sql(stack: Stack, database: str, statements: str) -> None:
    stack.execute("postgres", "psql", "--quiet", "-v", "ON_ERROR_STOP=1", "-U", "postgres", database, "-c", statements)
