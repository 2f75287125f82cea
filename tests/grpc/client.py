"""An independent gRPC client: calls one method several times, and writes a line of JSON for each call.

    client.py ADDRESS METHOD CALLS RETRIES BACKOFF

RETRIES: how many times a call is tried again by the service config, where the status is RESOURCE_EXHAUSTED. BACKOFF: how
many seconds later, unless the server reports it.
"""

import json
import sys

import grpc
from google.protobuf import wrappers_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

# No call may take longer, in seconds: the process that waits for this program waits longer.
PATIENCE = 20

KINDS = {
    "/test.Echo/Say": "unary_unary",
    "/test.Echo/Spell": "unary_stream",
    "/test.Echo/Join": "stream_unary",
    "/test.Echo/Chat": "stream_stream",
}


def options(retries, backoff):
    policy = {
        "maxAttempts": retries + 1,
        "initialBackoff": f"{backoff}s",
        "maxBackoff": f"{backoff}s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    }
    config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}] if retries else []}
    return [("grpc.service_config", json.dumps(config)), ("grpc.enable_http_proxy", 0)]


def refusal(error):
    """Returns what the caller receives. Code and message are compared by `from_call`."""
    reported = {"code": error.code().name, "message": error.details(), "wait": None, "names": None}
    metadata = list(error.trailing_metadata() or [])
    reported["lines"] = [[key, value] for key, value in metadata if not key.endswith("-bin")]
    status = rpc_status.from_call(error)
    if status is None:
        return reported
    for detail in status.details:
        retry, failure = error_details_pb2.RetryInfo(), error_details_pb2.QuotaFailure()
        if detail.Unpack(retry):
            assert reported["wait"] is None and retry.HasField("retry_delay")
            reported["wait"] = [retry.retry_delay.seconds, retry.retry_delay.nanos]
        elif detail.Unpack(failure):
            assert reported["names"] is None
            reported["names"] = [violation.description for violation in failure.violations]
        else:
            raise ValueError(f"unknown detail: {detail}")
    return reported


def main():
    address, method, calls, retries, backoff = sys.argv[1:]
    kind = KINDS[method]
    with grpc.insecure_channel(address, options(int(retries), backoff)) as channel:
        call = getattr(channel, kind)(
            method,
            request_serializer=wrappers_pb2.StringValue.SerializeToString,
            response_deserializer=wrappers_pb2.StringValue.FromString,
        )
        words = [wrappers_pb2.StringValue(value=letter) for letter in "abc"]
        for _ in range(int(calls)):
            asked = iter(words) if kind.startswith("stream") else wrappers_pb2.StringValue(value="abc")
            try:
                answer = call(asked, timeout=PATIENCE)
                answers = answer if kind.endswith("stream") else [answer]
                reported = {"answers": [answer.value for answer in answers]}
            except grpc.RpcError as error:
                reported = refusal(error)
            print(json.dumps(reported), flush=True)


main()
