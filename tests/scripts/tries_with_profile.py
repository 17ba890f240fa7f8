"""Use the object store with the profile that `mlplatform login` has written, then try what it may not do.

Prints the outcome of each as JSON. No client gets an address or an account.
"""

import json
import sys
import uuid

import boto3
from botocore.exceptions import ClientError

(others,) = sys.argv[1:]
s3 = boto3.client("s3")
name = f"tries-{uuid.uuid4().hex}"


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


def get(where, key):
    return outcome(s3.get_object, Bucket=where, Key=key)


def list_objects(where, **values):
    return outcome(s3.list_objects_v2, Bucket=where, **values)


def put_parts(where, key):
    """Upload in two parts."""
    place = {"Bucket": where, "Key": key}
    upload = {**place, "UploadId": s3.create_multipart_upload(**place)["UploadId"]}
    parts = [
        {"PartNumber": number, "ETag": s3.upload_part(**upload, PartNumber=number, Body=body)["ETag"]}
        for number, body in ((1, bytes(5 << 20)), (2, b"x"))
    ]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


tries = {
    "read checkpoint": get("ray", f"{others}/weights"),
    "list checkpoints": list_objects("ray"),
    "overwrite checkpoint": put("ray", f"{others}/weights"),
    "delete checkpoint": delete("ray", f"{others}/weights"),
    "add data set": put("datasets", name),
    "add data set in parts": outcome(put_parts, where="datasets", key=f"{name}-parts"),
    "read data set": get("datasets", name),
    "list data sets": list_objects("datasets"),
    "delete data set": delete("datasets", name),
    "read artifacts": list_objects("mlflow-artifacts"),
    "read logs": list_objects("jobs"),
    "write artifacts": put("mlflow-artifacts", name),
    "write logs": put("jobs", name),
    "create bucket": outcome(s3.create_bucket, Bucket=name),
    "end versions": outcome(s3.put_bucket_versioning, Bucket="ray", VersioningConfiguration={"Status": "Suspended"}),
    "open a session": outcome(boto3.client("sts").assume_role, RoleArn="arn:xxx:xxx:xxx:xxxx", RoleSessionName="tries"),
}
print("tries:", json.dumps(tries))
