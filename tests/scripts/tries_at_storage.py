"""Use the object store with the account of this job, then try what it may not do; print the outcome of each as JSON."""

import json
import sys

import boto3
import pyarrow.fs
from botocore.exceptions import ClientError

from mlplatform.storage.addresses import checkpoint_uri

others, team, other_team = sys.argv[1:]
s3 = boto3.client("s3")
_, _, bucket, mine = checkpoint_uri().split("/")

# With pyarrow, as Ray writes checkpoints and deletes those that `num_to_keep` leaves out.
files, path = pyarrow.fs.FileSystem.from_uri(checkpoint_uri("fit"))
files.create_dir(f"{path}/checkpoint_0")
with files.open_output_stream(f"{path}/checkpoint_0/weights") as stream:
    stream.write(bytes(6 << 20))
files.delete_dir(f"{path}/checkpoint_0")


def outcome(request, **values):
    try:
        request(**values)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "done"


def put(where, key):
    return outcome(s3.put_object, Bucket=where, Key=key, Body=b"x")


def delete(where, key):
    return outcome(s3.delete_object, Bucket=where, Key=key)


tries = {
    "write own": put(bucket, f"{mine}/fit/weights"),
    "delete own": delete(bucket, f"{mine}/fit/weights"),
    "read another's": outcome(s3.get_object, Bucket=bucket, Key=f"{others}/weights"),
    "list": outcome(s3.list_objects_v2, Bucket=bucket),
    "overwrite another's": put(bucket, f"{others}/weights"),
    "delete another's": delete(bucket, f"{others}/weights"),
    "write beside own": put(bucket, f"{mine}-more/weights"),
    "raise own fence": put(bucket, f"{mine}/attempt"),
    "write data set": put("datasets", "tries"),
    "add for team": put("teams", f"{team}/{mine}"),
    "read of team": outcome(s3.get_object, Bucket="teams", Key=f"{team}/{mine}"),
    "list team": outcome(s3.list_objects_v2, Bucket="teams", Prefix=f"{team}/"),
    "delete of team": delete("teams", f"{team}/{mine}"),
    "add for other team": put("teams", f"{other_team}/{mine}"),
    "list other team": outcome(s3.list_objects_v2, Bucket="teams", Prefix=f"{other_team}/"),
    "list all teams": outcome(s3.list_objects_v2, Bucket="teams"),
    "read artifacts": outcome(s3.list_objects_v2, Bucket="mlflow-artifacts"),
    "read logs": outcome(s3.list_objects_v2, Bucket="jobs"),
    "create bucket": outcome(s3.create_bucket, Bucket="tries"),
    "end versions": outcome(s3.put_bucket_versioning, Bucket=bucket, VersioningConfiguration={"Status": "Suspended"}),
    "open a session": outcome(
        boto3.client("sts", "us-east-1").assume_role, RoleArn="arn:xxx:xxx:xxx:xxxx", RoleSessionName="tries"
    ),
}
print("tries:", json.dumps(tries))
