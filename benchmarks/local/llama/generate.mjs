// Answers on stdin/stdout, one JSON document a line: {ids, maxTokens, temperature, seed, threads} -> {ids, seconds, first} (first: to the first token).
// The first line out is {ready}. Plain sampling from the whole law: no top-k, top-p, min-p, penalties.
import { createInterface } from "node:readline";
import { performance } from "node:perf_hooks";
import { getLlama } from "node-llama-cpp";

const [modelPath, contextSize] = [process.argv[2], Number(process.argv[3])];
const quiet = () => {};
const llama = await getLlama({ gpu: false, build: "never", maxThreads: 0, logger: quiet });
const model = await llama.loadModel({ modelPath, useMmap: true });
const contexts = new Map();

async function sequence(threads) {
  if (!contexts.has(threads)) {
    const ideal = { threads: { ideal: threads, min: threads } };
    const context = await model.createContext({ contextSize, sequences: 1, ...ideal });
    contexts.set(threads, context.getSequence());
  }
  return contexts.get(threads);
}

async function answer({ ids, maxTokens, temperature, seed, threads }) {
  const place = await sequence(threads);
  await place.clearHistory();
  const law = { temperature, topK: 0, topP: 1, minP: 0, seed, repeatPenalty: false, yieldEogToken: true };
  const found = [];
  const started = performance.now();
  let first = 0;
  for await (const token of place.evaluate(ids, law)) {
    if (!found.length) first = (performance.now() - started) / 1000;
    found.push(token);
    if (found.length >= maxTokens || model.isEogToken(token)) break;
  }
  return { ids: found, seconds: (performance.now() - started) / 1000, first };
}

console.log(JSON.stringify({ ready: llama.llamaCppRelease?.release ?? "unknown" }));
for await (const line of createInterface({ input: process.stdin })) {
  if (line.trim()) console.log(JSON.stringify(await answer(JSON.parse(line))));
}
await llama.dispose();
process.exit(0);
