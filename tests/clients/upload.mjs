// Uploads over pooled connections, by node's http.
//
//     node upload.mjs HOST PORT COUNT SIZE...
//
// For each size: posts a body of that many bytes COUNT times, one after the other, and writes a line of JSON that counts the
// statuses, and the errors where there was no answer.

import http from "node:http";

// No request may take longer, in milliseconds.
const PATIENCE = 20_000;

const [host, port, count, ...sizes] = process.argv.slice(2);

function post(agent, body) {
    return new Promise((resolve) => {
        const headers = { "content-length": body.length };
        const request = http.request({ host, port, agent, headers, method: "POST", timeout: PATIENCE });
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
    const agent = new http.Agent({ keepAlive: true });
    const body = Buffer.alloc(Number(size));
    const seen = {};
    for (let number = 0; number < Number(count); number += 1) {
        const answer = await post(agent, body);
        seen[answer] = (seen[answer] ?? 0) + 1;
    }
    agent.destroy();
    console.log(JSON.stringify(seen));
}
