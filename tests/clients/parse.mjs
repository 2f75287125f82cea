// Prints what npm's ratelimit-header-parser reads from responses.
//
//     node parse.mjs URL...
//
// For each: makes one request, and writes a line of JSON. The time is in seconds from now, rounded.

import { parseRateLimit } from "../../target/node/node_modules/ratelimit-header-parser/dist/index.mjs";

for (const url of process.argv.slice(2)) {
    const answer = await fetch(url);
    const { limit, remaining, reset } = parseRateLimit(answer) ?? {};
    const seconds = reset && !Number.isNaN(reset.getTime()) ? Math.round((reset - Date.now()) / 1000) : null;
    console.log(JSON.stringify({ limit, remaining, seconds }));
}
