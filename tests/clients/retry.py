"""urllib3, which retries after the wait that the server reports.

    retry.py RETRIES URL...

All URLs at the same time; for each, writes a line of JSON: the status, and the statuses of the attempts before.
"""

import concurrent.futures
import json
import sys

import urllib3

# No request may take longer, in seconds.
PATIENCE = 20


def ask(url, retries):
    # Without a Retry-After, it retries immediately.
    policy = urllib3.Retry(total=retries, status_forcelist=[429, 503], backoff_factor=0, raise_on_status=False)
    with urllib3.PoolManager(timeout=PATIENCE) as pool:
        response = pool.request("GET", url, retries=policy)
        return [response.status, [attempt.status for attempt in response.retries.history]]


def main():
    retries, urls = int(sys.argv[1]), sys.argv[2:]
    with concurrent.futures.ThreadPoolExecutor(len(urls)) as threads:
        for answer in threads.map(lambda url: ask(url, retries), urls):
            print(json.dumps(answer), flush=True)


main()
