// Uploads over pooled connections, by node's http.
//
//     node upload.mjs URL COUNT ENCODING SIZE...
//
// ENCODING is `identity`, or `gzip` for bodies that the server has to decompress. The certificate of a URL with https is
// not checked. For each size: posts a body of that many bytes COUNT times, one after the other, and writes a line of JSON that counts the
// statuses, and the errors where there was no answer.

import { randomBytes } from "node:crypto";
import http from "node:http";
import https from "node:https";
import { gzipSync } from "node:zlib";

// No request may take longer, in milliseconds.
const PATIENCE = 20_000;

const [url, count, encoding, ...sizes] = process.argv.slice(2);
const { Agent, request: start } = url.startsWith("https:") ? https : http;

function post(agent, body) {
    return new Promise((resolve) => {
        const headers = { "content-length": body.length };
        if (encoding === "gzip") headers["content-encoding"] = "gzip";
        const request = start(url, { agent, headers, method: "POST", timeout: PATIENCE });
        request.on("response", (response) => {
            response.on("error", (error) => resolve(error.code ?? String(error)));
            response.on("end", () => resolve(String(response.statusCode)));
            response.resume();
        });
        request.on("timeout", () => request.destroy(new Error("timeout")));
        request.on("error", (error) => resolve(error.code ?? String(error)));
        request.end(body);
    });
}

for (const size of sizes) {
    const agent = new Agent({ keepAlive: true, rejectUnauthorized: false });
    // Random bytes do not become fewer.
    const body = encoding === "gzip" ? gzipSync(randomBytes(Number(size))) : Buffer.alloc(Number(size));
    const seen = {};
    for (let number = 0; number < Number(count); number += 1) {
        const answer = await post(agent, body);
        seen[answer] = (seen[answer] ?? 0) + 1;
    }
    agent.destroy();
    console.log(JSON.stringify(seen));
}
