"""Variables of the environment that decide whether a program may start warm; imported by the client, so kept small."""

from __future__ import annotations

READ_BY_LIBRARIES = (
    "ABSL_", "ARROW_", "ASAN_", "CUBLAS_", "CUDA_", "CUDNN_", "FSSPEC_", "GLIBC_", "GLOG_", "GOMP_", "GOTO_", "GRPC_",
    "HF_", "HIP_", "HSA_", "KMP_", "LC_", "LD_", "MALLOC_", "MKL_", "NCCL_", "NPY_", "NUMEXPR_", "NVIDIA_", "OMP_",
    "OPENBLAS_", "ORC_", "PYTHON", "PYTORCH_", "RAY_", "ROCM_", "ROCR_", "TBB_", "TORCH", "TRANSFORMERS_",
    "TRITON_", "VECLIB_",
)  # fmt: skip
"""Prefixes of variables that C code reads while a library is loaded, which Python's record does not see."""

READ_AT_START = frozenset({"HOME", "LANG", "LANGUAGE", "TZ"})
"""Variables that C code reads when the process starts."""

AFTER_FORK = {
    "AWS_ACCESS_KEY_ID": "read when a client of S3 is created; each attempt has its own",
    "AWS_SECRET_ACCESS_KEY": "as AWS_ACCESS_KEY_ID",
    "CUDA_VISIBLE_DEVICES": "read when the driver is initialized, which no template has done",
    "HIP_VISIBLE_DEVICES": "as CUDA_VISIBLE_DEVICES",
    "MLFLOW_TRACKING_PASSWORD": "read for each request to MLflow",
    "MLFLOW_TRACKING_USERNAME": "as MLFLOW_TRACKING_PASSWORD",
    "NVIDIA_VISIBLE_DEVICES": "read by the container runtime only",
    "OMP_NUM_THREADS": "Ray sets it per worker; the thread pools are resized to it",
    "PYTHONBREAKPOINT": "read by breakpoint(); Ray sets it in its workers",
    "PYTHONPATH": "the module path is computed again, and its folders are searched for names that are loaded",
    "PYTHONUNBUFFERED": "read when the standard streams are opened, which is done again",
    "RAY_ADDRESS": "read by ray.init",
    "RAY_API_SERVER_ADDRESS": "read when a client of the Jobs API is created",
    "RAY_AUTH_TOKEN": "read at the first connection",
    "RAY_AUTH_TOKEN_PATH": "read at the first connection",
    "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "read when a worker gets its accelerators",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "read when a worker gets its accelerators",
    "RAY_JOB_CONFIG_JSON_ENV_VAR": "read by ray.init",
    "RAY_JOB_HEADERS": "as RAY_API_SERVER_ADDRESS; each attempt has its own",
    "RAY_JOB_STOP_WAIT_TIME_S": "read by the supervisor of a job",
    "RAY_LOG_TO_DRIVER": "read by ray.init, as ray/fork.py changes Ray",
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "read by ray.init",
    "ROCR_VISIBLE_DEVICES": "as CUDA_VISIBLE_DEVICES",
}
"""Variables that may differ, because they are read after the fork or applied again there; each with the reason."""

OF_DRIVERS = {"RAY_LD_PRELOAD_ON_WORKERS": "0", "RAY_worker_niceness": "0"}
"""Variables that Ray sets for drivers; the drivers' template has them too."""


def is_read_early(name: str) -> bool:
    """Return whether a variable is read before a program's first line, as far as its name tells."""
    return name not in AFTER_FORK and (name in READ_AT_START or name.startswith(READ_BY_LIBRARIES))
