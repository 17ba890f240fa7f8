"""Files that Ray Train V2 keeps beside checkpoints, and their keys; seen in Ray 2.60.0.

`ray.train.Result.from_path` reads them too, but imports Ray, and returns neither the best checkpoint nor the reports
that were counted; the gateway and laptops read them without Ray.
"""

SNAPSHOT = "checkpoint_manager_snapshot.json"
"""Name of the snapshot in the training run's folder (`ray.train.v2._internal.constants`)."""

METADATA = ".metadata.json"
"""Name of the metadata file in each checkpoint's folder (`ray.train._checkpoint`)."""

FOLDER_PREFIX = "checkpoint_"
"""Prefix of the names of checkpoints' folders (`ray.train.v2._internal.execution.storage`)."""

LATEST = "latest_checkpoint_result"
"""Key of the snapshot: the newest checkpoint, or null."""

RESULTS = "checkpoint_results"
"""Key of the snapshot: the kept checkpoints; sorted by the metric, if there is one, the best last."""

INDICES = "checkpoint_report_indices"
"""Key of the snapshot: the number of the report that came with each of `RESULTS`, from 0."""

PENDING = "pending_training_results"
"""Key of the snapshot: results whose validation is not finished."""

FOLDER = "checkpoint_dir_name"
"""Key of a result: name of the checkpoint's folder."""

METRICS = "metrics"
"""Key of a result: the metrics that were reported with it."""
