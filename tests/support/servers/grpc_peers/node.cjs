// A client and a server on @grpc/grpc-js, Node's own HTTP/2, with the words and the methods of cpp.cc.

const grpc = require("@grpc/grpc-js");

const bytes = (body) => body;
const METHOD = {
  requestStream: true,
  responseStream: true,
  requestSerialize: bytes,
  requestDeserialize: bytes,
  responseSerialize: bytes,
  responseDeserialize: bytes,
};

function say(kind, text) {
  const body = Buffer.from(text);
  const head = Buffer.alloc(5, kind);
  head.writeUInt32LE(body.length, 1);
  process.stdout.write(Buffer.concat([head, body]));
}

function sayPairs(kind, metadata) {
  for (const [key, value] of Object.entries(metadata.getMap())) say(kind, `${key}\0${value}`);
}

function readAll(then) {
  const parts = [];
  process.stdin.on("data", (part) => parts.push(part));
  process.stdin.on("end", () => then(Buffer.concat(parts)));
}

function messagesIn(data) {
  const found = [];
  for (let at = 0; at < data.length; ) {
    const end = at + 4 + data.readUInt32LE(at);
    found.push(data.subarray(at + 4, end));
    at = end;
  }
  return found;
}

function runClient([address, path, deadlineMs, cancelAfter, ...pairs]) {
  const most = 64 << 20;
  const client = new grpc.Client(address, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": most,
    "grpc.max_send_message_length": most,
  });
  const metadata = new grpc.Metadata();
  for (const pair of pairs) {
    const at = pair.indexOf("=");
    metadata.add(pair.slice(0, at), pair.slice(at + 1));
  }
  const options = Number(deadlineMs) ? { deadline: Date.now() + Number(deadlineMs) } : {};
  readAll((data) => {
    const call = client.makeBidiStreamRequest(path, bytes, bytes, metadata, options);
    let came = 0;
    call.on("metadata", (said) => sayPairs("I", said));
    call.on("data", (message) => {
      say("M", message);
      if (++came === Number(cancelAfter)) call.cancel();
    });
    call.on("error", () => {}); // the status says it too
    call.on("status", (status) => {
      sayPairs("T", status.metadata);
      say("S", `${status.code} ${status.details}`);
      client.close();
    });
    for (const message of messagesIn(data)) call.write(message);
    call.end();
  });
}

function ownPairs(call, before) {
  const said = new grpc.Metadata();
  for (const [key, value] of Object.entries(call.metadata.getMap()))
    if (key.startsWith("x-")) said.add(before + key, value);
  return said;
}

function onFirst(answer) {
  return (call) => {
    call.once("data", (message) => answer(call, message));
    call.on("error", () => {});
  };
}

function serve() {
  const answers = {
    echo: (call) => {
      call.sendMetadata(ownPairs(call, ""));
      call.on("data", (message) => call.write(message));
      call.on("error", () => {});
      call.on("end", () => call.end(ownPairs(call, "trailing-")));
    },
    many: onFirst((call, message) => {
      for (let n = Number(message.toString()); n > 0; n--) call.write(Buffer.from(String(n)));
      call.end();
    }),
    size: onFirst((call, message) => {
      call.write(Buffer.alloc(Number(message.toString()), "x"));
      call.end();
    }),
    fail: onFirst((call, message) => {
      call.emit("error", { code: grpc.status.NOT_FOUND, details: message.toString() });
    }),
    hang: () => {},
  };
  const methods = {};
  for (const name of Object.keys(answers)) methods[name] = { path: `/${name}`, ...METHOD };
  const server = new grpc.Server({ "grpc.max_receive_message_length": 64 << 20 });
  server.addService(methods, answers);
  const own = grpc.ServerCredentials.createInsecure();
  server.bindAsync("127.0.0.1:0", own, (error, port) => {
    if (error) throw error;
    console.log(port);
  });
  readAll(() => server.forceShutdown());
}

if (process.argv[2] === "server") serve();
else runClient(process.argv.slice(3));
