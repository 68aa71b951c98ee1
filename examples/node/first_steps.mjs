// Tandem from Node: complete a text, read a stream, chat, leave a stream, and read an error's reason.
//
// Usage: npm ci --prefix examples/node && node examples/node/first_steps.mjs [ADDRESS]
//
// The messages come from proto/ at run time; nothing is generated. Calls are tried again, and spread over several
// servers, as tandem/service_config.json says: "ipv4:10.0.0.1:50051,10.0.0.2:50051" or "dns:///tandem.example.org:50051".
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const root = (path) => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const address = process.argv[2] ?? "127.0.0.1:50051";

const definition = protoLoader.loadSync(
  ["inference", "chat"].map((name) => `tandem/v1/${name}.proto`),
  // longs: seeds have 64 bits, which a JavaScript number does not hold.
  { includeDirs: [root("proto")], longs: String, enums: String, defaults: true, oneofs: true },
);
const { tandem } = grpc.loadPackageDefinition(definition);
const options = { "grpc.service_config": readFileSync(root("tandem/service_config.json"), "utf8") };
const inference = new tandem.v1.InferenceService(address, grpc.credentials.createInsecure(), options);
const chat = new tandem.v1.ChatService(address, grpc.credentials.createInsecure(), options);

const unary = (client, method, request) =>
  new Promise((resolve, reject) => {
    const deadline = new Date(Date.now() + 60_000);
    client[method](request, { deadline }, (error, reply) => (error ? reject(error) : resolve(reply)));
  });

// An error's details are a google.rpc.Status in its trailing metadata; the reason is that of its ErrorInfo.
const STATUS = `
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }`;
const rpc = protobuf.parse(STATUS, { keepCase: true }).root;
const reasonOf = (error) => {
  const [packed] = error.metadata.get("grpc-status-details-bin");
  const details = packed ? rpc.lookupType("Status").decode(packed).details : [];
  const info = details.find((detail) => detail.type_url.endsWith("/google.rpc.ErrorInfo"));
  return info ? rpc.lookupType("ErrorInfo").decode(info.value).reason : "";
};

const greedy = (maxTokens) => ({ sampling: { temperature: 0 }, stopping: { maxTokens } });

const answer = await unary(inference, "generate", { text: "The capital of France is", ...greedy(8) });
console.log(`generate: ${JSON.stringify(answer.completions[0].text)}, ${answer.usage.completionTokens} tokens`);

let text = "";
for await (const chunk of inference.streamGenerate({ text: "One, two, three,", ...greedy(12) })) text += chunk.text;
console.log(`stream: ${text}`);

const turn = await unary(chat, "chat", { messages: [{ role: "ROLE_USER", content: "Say hello." }], ...greedy(12) });
console.log(`chat: ${JSON.stringify(turn.choices[0].message.content)}, finished by ${turn.choices[0].finish.reason}`);

// Leaving the loop cancels the call, and the server stops working for it.
try {
  for await (const chunk of inference.streamGenerate({ text: "Once upon a time", ...greedy(200) })) {
    console.log(`first words: ${JSON.stringify(chunk.text)}`);
    break;
  }
} catch (error) {
  if (error.code !== grpc.status.CANCELLED) throw error;
}

try {
  await unary(inference, "generate", { text: "Hello", sampling: { temperature: -1 } });
} catch (error) {
  console.log(`refused: ${reasonOf(error)}, ${error.details}`);
}
inference.close();
chat.close();
