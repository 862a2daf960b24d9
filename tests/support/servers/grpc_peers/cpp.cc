// A client and a server on gRPC's C++ library that know no message's type.
//
// client ADDRESS PATH DEADLINE_MS CANCEL_AFTER [KEY=VALUE...]: one call, of the messages on stdin.
//   DEADLINE_MS 0: none. CANCEL_AFTER -1: never; N: after N messages of the answer.
// server: prints its port, and answers until stdin ends. Methods: /echo, /many (as many messages
//   as the request says), /size (a message of so many bytes), /fail, /hang.
//
// A message on stdin is its length, four bytes, and its bytes. On stdout a kind stands before it:
// I, T: a pair of metadata, initial or trailing, with a 0 in between; M: a message; S: the status.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using grpc::ByteBuffer;
using grpc::Status;
using std::string;

static string flat(const ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  string out;
  if (buffer.Dump(&slices).ok())
    for (const auto& each : slices)
      out.append(reinterpret_cast<const char*>(each.begin()), each.size());
  return out;
}

static ByteBuffer buffer_of(const string& text) {
  grpc::Slice slice(text);
  return ByteBuffer(&slice, 1);
}

static void say(char kind, const string& text) {
  uint32_t size = static_cast<uint32_t>(text.size());
  putchar(kind);
  fwrite(&size, 4, 1, stdout);
  fwrite(text.data(), 1, size, stdout);
  fflush(stdout);
}

static std::vector<string> messages_on_stdin() {
  std::vector<string> found;
  uint32_t size;
  while (fread(&size, 4, 1, stdin) == 1) {
    string text(size, '\0');
    if (fread(&text[0], 1, size, stdin) != size) break;
    found.push_back(text);
  }
  return found;
}

template <typename Pairs>
static void say_pairs(char kind, const Pairs& pairs) {
  for (const auto& each : pairs)
    say(kind, string(each.first.data(), each.first.size()) + '\0' +
                  string(each.second.data(), each.second.size()));
}

static int client(int count, char** words) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  auto channel = grpc::CreateCustomChannel(words[0], grpc::InsecureChannelCredentials(), arguments);
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  int deadline_ms = atoi(words[2]), cancel_after = atoi(words[3]);
  if (deadline_ms)
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(deadline_ms));
  for (int n = 4; n < count; n++) {
    string pair = words[n];
    size_t at = pair.find('=');
    context.AddMetadata(pair.substr(0, at), pair.substr(at + 1));
  }
  grpc::CompletionQueue queue;
  void* tag;
  bool ok;
  auto wait = [&] { return queue.Next(&tag, &ok) && ok; };
  auto call = stub.PrepareCall(&context, words[1], &queue);
  call->StartCall(nullptr);
  bool good = wait();
  for (const string& each : messages_on_stdin()) {
    if (!good) break;
    call->Write(buffer_of(each), nullptr);
    good = wait();
  }
  if (good) {
    call->WritesDone(nullptr);
    wait();
  }
  for (int n = 0;; n++) {
    if (n == cancel_after) context.TryCancel();
    ByteBuffer message;
    call->Read(&message, nullptr);
    if (!wait()) break;
    say('M', flat(message));
  }
  Status status;
  call->Finish(&status, nullptr);
  wait();
  say_pairs('I', context.GetServerInitialMetadata());
  say_pairs('T', context.GetServerTrailingMetadata());
  say('S', std::to_string(status.error_code()) + " " + status.error_message());
  return 0;
}

class Call : public grpc::ServerGenericBidiReactor {
 public:
  explicit Call(grpc::GenericCallbackServerContext* context)
      : context_(context), method_(context->method()) {
    for (const auto& each : context->client_metadata())
      if (each.first.starts_with("x-")) {
        string key(each.first.data(), each.first.size());
        string value(each.second.data(), each.second.size());
        context->AddInitialMetadata(key, value);
        context->AddTrailingMetadata("trailing-" + key, value);
      }
    StartRead(&in_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      if (method_ == "/hang") return;  // until OnCancel
      Finish(Status::OK);
      return;
    }
    string text = flat(in_);
    if (method_ == "/fail") {
      Finish(Status(grpc::StatusCode::NOT_FOUND, text));
    } else if (method_ == "/size") {
      write(string(atoi(text.c_str()), 'x'));
    } else if (method_ == "/many") {
      left_ = atoi(text.c_str());
      OnWriteDone(true);
    } else if (method_ == "/echo") {
      write(text);
    } else {
      StartRead(&in_);
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok && left_ > 0) {
      write(std::to_string(left_--));
    } else {
      StartRead(&in_);
    }
  }
  void OnCancel() override {
    if (method_ == "/hang") Finish(Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  void write(const string& text) {
    out_ = buffer_of(text);
    StartWrite(&out_);
  }
  grpc::GenericCallbackServerContext* context_;
  string method_;
  ByteBuffer in_, out_;
  int left_ = 0;
};

class Service : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Call(context);
  }
};

static int server() {
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  auto running = builder.BuildAndStart();
  printf("%d\n", port);
  fflush(stdout);
  while (getchar() != EOF) {
  }
  running->Shutdown(std::chrono::system_clock::now());
  return 0;
}

int main(int count, char** words) {
  return count > 5 ? client(count - 2, words + 2) : server();
}
