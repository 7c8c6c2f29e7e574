// A client with no code of ours: it knows the .proto files and nothing else.
//
// node play.js TARGET PROTO_DIRECTORY: plays 20 episodes and prints what it saw, as JSON. README.md beside it says how to run it,
// docs/protocol.md what it may rely on. It stops at the first thing that is not as that page says.
"use strict";

const assert = require("node:assert");
const { promisify } = require("node:util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const AGENT = "node";
const STATES = 10;
const ACTIONS = 2;
const HORIZON = 10;
const EPISODES = 20;

const [target, protoDirectory] = process.argv.slice(2);
const definition = loader.loadSync(["safe_psrl_proto/v1/control.proto", "safe_psrl_proto/v1/admin.proto"], {
  includeDirs: [protoDirectory],
  keepCase: true,
  longs: Number,
  defaults: true,
  oneofs: true,
});
const { ControlService, AdminService } = grpc.loadPackageDefinition(definition).safe_psrl.v1;
const control = new ControlService(target, grpc.credentials.createInsecure());
const admin = new AdminService(target, grpc.credentials.createInsecure());

// A deadline on every call: without one, a call whose server is gone can wait for ever. After DEADLINE_EXCEEDED or UNAVAILABLE
// it is unknown whether the call was executed; a call with its key (see playStepped) is repeated.
function call(client, method, request) {
  const deadline = Date.now() + 60_000;
  return promisify(client[method].bind(client))(request, new grpc.Metadata(), { deadline });
}

// A buffer that packets come to and leave by themselves; action 1 lets more of them in.
let seed = 12345;
function chance() {
  seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
  return seed / 0x80000000;
}
function follow(state, action) {
  const drift = chance() < (action === 1 ? 0.7 : 0.3) ? 1 : -1;
  return Math.min(STATES - 1, Math.max(0, state + drift));
}

// The problem, as the agent is told it: states, actions, reward, cost and budget. How states follow each other it must learn.
// Tables are in row-major order: the entry of (state, action) is at state * ACTIONS + action.
const spec = {
  cmdp: {
    num_states: STATES,
    num_actions: ACTIONS,
    horizon: HORIZON,
    initial_state: 0,
    reward: { shape: [STATES, ACTIONS], values: Array.from({ length: STATES * ACTIONS }, (_, i) => Math.floor(i / 2) / STATES) },
    constraints: [
      {
        name: "admitted",
        cost: { shape: [STATES, ACTIONS], values: Array.from({ length: STATES * ACTIONS }, (_, i) => i % 2) },
        cost_budget: 5,
        satisfiable_cost: 1,
      },
    ],
  },
  seed: 7,
};

async function playBare() {
  // The least that a client can do, two calls a step. Agent and state only: the open episode and its next step are meant. A
  // repetition could not be told from a new step, so a call that got no answer must not be made again.
  let state = 0;
  const seen = [];
  for (let done = false; !done; ) {
    const { action, step } = await call(control, "GetAction", { agent: AGENT, state });
    assert.strictEqual(step, seen.length);
    const next_state = follow(state, action);
    const reply = await call(control, "ReportTransition", { agent: AGENT, transition: { state, action, next_state } });
    assert.strictEqual(reply.duplicate, false);
    seen.push([state, action, next_state]);
    state = next_state;
    done = reply.episode_done;
  }
  return seen;
}

async function playStepped(number) {
  // What a client should do: request_id, episode and step filled in, and one call a step. Here every call is made twice, as if
  // each reply had been lost once: the repetition gets the same reply, marked as a duplicate, and changes nothing.
  let state = 0;
  const seen = [];
  const start = { agent: AGENT, request_id: `node-${number}`, state };
  const started = await call(control, "StartEpisode", start);
  assert.deepStrictEqual(await call(control, "StartEpisode", start), started);
  assert.strictEqual(started.episode, number);
  let { action } = started;
  for (let step = 0; step < started.horizon; step++) {
    const transition = { state, action, next_state: follow(state, action) };
    const request = { agent: AGENT, episode: number, step, transition };
    const reply = await call(control, "Step", request);
    const again = await call(control, "Step", request);
    assert.deepStrictEqual(again, { ...reply, duplicate: true });
    seen.push([state, action, transition.next_state]);
    ({ action } = reply);
    state = transition.next_state;
  }
  return seen;
}

async function main() {
  // An error has a code for programs; its details (google.rpc.Status) are in error.metadata, "grpc-status-details-bin".
  await assert.rejects(call(control, "GetAction", { agent: "nobody", state: 0 }), { code: grpc.status.NOT_FOUND });
  // The same definition again returns the agent as it is: a program may do this whenever it starts.
  await call(admin, "CreateAgent", { agent: AGENT, spec });
  const episodes = [];
  for (let number = 1; number <= EPISODES; number++) {
    episodes.push(number % 2 ? await playBare() : await playStepped(number));
  }
  const { status } = await call(admin, "GetAgent", { agent: AGENT });
  console.log(JSON.stringify({ episodes, dual_variable: status.constraints[0].dual_variable }));
  control.close();
  admin.close();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
