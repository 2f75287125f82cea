// Prints how long octokit, GitHub's client, with its plugin for limits, would wait after a rejection.
//
//     node octokit.mjs URL
//
// Writes a line of JSON: the number of seconds.

import { Octokit } from "../../target/node/node_modules/@octokit/core/dist-src/index.js";
import { throttling } from "../../target/node/node_modules/@octokit/plugin-throttling/dist-bundle/index.js";

let waits = null;
const throttle = {
    onRateLimit(seconds) {
        waits = seconds;
        return false;
    },
    onSecondaryRateLimit() {
        return false;
    },
};
const log = { debug() {}, info() {}, warn() {}, error() {} };
const Client = Octokit.plugin(throttling);
const octokit = new Client({ baseUrl: process.argv[2], throttle, log });
try {
    await octokit.request("GET /");
} catch (error) {
    if (error.status !== 429) {
        throw error;
    }
}
console.log(JSON.stringify(waits));
