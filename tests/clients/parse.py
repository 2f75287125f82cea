"""Prints what parsers read from responses: ratelimit-headers, retryheader, and that of the OpenAI SDK.

    parse.py URL...

For each: makes one request, and writes a line of JSON. Times are in seconds from now; one that was given as a date is rounded.
"""

import datetime
import json
import sys

import httpx
import openai
import ratelimit_headers
import retryheader


def seconds(reset):
    if reset is None:
        return None
    return round((reset - datetime.datetime.now(datetime.timezone.utc)).total_seconds())


def named(headers):
    """Returns the fields of the newest draft, which earlier drafts do not define."""
    try:
        policies = retryheader.parse_ratelimit_policy(headers.get_list("ratelimit-policy"))
        limits = retryheader.parse_ratelimit(headers.get_list("ratelimit"))
    except retryheader.RateLimitError:
        return None
    return [
        [[policy.name, policy.quota, policy.window] for policy in policies],
        [[limit.policy, limit.remaining, limit.window] for limit in limits],
    ]


def main():
    sdk = openai.OpenAI(api_key="none")
    with httpx.Client(trust_env=False) as client:
        for url in sys.argv[1:]:
            headers = client.get(url).headers
            state = ratelimit_headers.parse(dict(headers))
            read = {
                "delay": retryheader.delay_from_headers(list(headers.multi_items())),
                "named": named(headers),
                "limit": state.limit,
                "remaining": state.remaining,
                "reset": seconds(state.reset),
                "sdk": sdk._parse_retry_after_header(headers),
            }
            print(json.dumps(read), flush=True)


main()
