/* Connections, and what HTTP/2 does on them. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paced.h"

static const int64_t AGAIN_NS = 100 * 1000000;
static const int32_t WINDOW = 1 << 30;

static int poller;
static struct addrinfo *address;
static callbacks *called;
static struct pair head[16];
static int head_count;

/* What nghttp2 calls. */

static void *name_of(const struct call *call) {
  return (void *)((uintptr_t)call->record.number << 8 | call->record.attempts);
}

static struct call *named(void *name) {
  struct call *call = name ? calls[(uintptr_t)name >> 8] : NULL;
  return call && name_of(call) == name ? call : NULL;
}

static struct call *call_of(session *http2, int32_t stream) {
  return named(nghttp2_session_get_stream_user_data(http2, stream));
}

static ssize_t read_body(session *http2, int32_t stream, uint8_t *to, size_t room,
                         uint32_t *flags, union source *from, void *user) {
  struct call *call = named(from->ptr);
  struct line *line = user;
  const uint8_t *body;
  size_t length, part;
  (void)http2, (void)stream;
  if (!call || line->buffered_count == BUFFERED)
    return RESET;
  body = bodies + offsets[call->record.number];
  length = offsets[call->record.number + 1] - offsets[call->record.number];
  part = length - call->body_sent;
  if (part > room)
    part = room;
  memcpy(to, body + call->body_sent, part);
  call->body_sent += part;
  if (call->body_sent == length) {
    *flags |= END_OF_BODY;
    line->buffered[line->buffered_count++] = call->record.number;
  }
  return part;
}

static int closed(session *http2, int32_t stream, uint32_t error, void *user) {
  struct call *call = call_of(http2, stream);
  (void)user;
  if (call && !error && call->record.status == 0)
    end(call, ENDED, error);
  else if (call)
    attempt_failed(call, ENDED, error);
  return 0;
}

static int data(session *http2, uint8_t flags, int32_t stream, const uint8_t *bytes,
                size_t length, void *user) {
  struct call *call = call_of(http2, stream);
  size_t wanted;
  (void)flags, (void)user;
  if (!call)
    return 0;
  wanted = call->record.body_bytes + length;
  if (wanted > call->room) {
    call->room = 2 * wanted;
    if (!(call->answer = realloc(call->answer, call->room)))
      give_up("memory");
  }
  memcpy(call->answer + call->record.body_bytes, bytes, length);
  call->record.body_bytes = wanted;
  return 0;
}

static int header(session *http2, const struct frame *of, const uint8_t *name,
                  size_t name_length, const uint8_t *value, size_t length,
                  uint8_t flags, void *user) {
  struct call *call = call_of(http2, of->stream);
  (void)flags, (void)user;
  if (!call)
    return 0;
  if (name_length == 11 && !memcmp(name, "grpc-status", 11)) {
    call->record.status = atoi((const char *)value); /* nghttp2 ends it with a zero */
  } else if (name_length == 12 && !memcmp(name, "grpc-message", 12)) {
    call->record.message_bytes = length < MESSAGE_BYTES ? length : MESSAGE_BYTES;
    memcpy(call->message, value, call->record.message_bytes);
  }
  return 0;
}

static int received(session *http2, const struct frame *of, void *user) {
  struct line *line = user;
  (void)http2;
  if (of->type == SETTINGS_FRAME)
    line->ready = 1;
  if (of->type == GOAWAY_FRAME)
    line->ready = 0;
  return 0;
}

/* Connections. */

void lose(struct line *line) {
  line->ready = 0;
  line->again_ns = now() + AGAIN_NS;
  line->buffered_count = 0;
  line->filled = line->written = 0;
  if (line->fd >= 0)
    close(line->fd);
  line->fd = -1;
  if (line->http2)
    nghttp2_session_del(line->http2);
  line->http2 = NULL;
  for (uint32_t number = oldest; number < submitted; number++)
    if (calls[number] && calls[number]->line == line)
      attempt_failed(calls[number], CONNECTION_LOST, 0);
}

void make(struct line *line) {
  struct setting window = {INITIAL_WINDOW_SIZE, WINDOW};
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
  int one = 1;
  line->again_ns = INT64_MAX;
  line->fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (line->fd < 0)
    give_up("socket");
  setsockopt(line->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(line->fd, address->ai_addr, address->ai_addrlen) &&
      errno != EINPROGRESS) {
    lose(line);
    return;
  }
  event.data.ptr = line;
  if (epoll_ctl(poller, EPOLL_CTL_ADD, line->fd, &event) ||
      nghttp2_session_client_new(&line->http2, called, line) ||
      nghttp2_submit_settings(line->http2, 0, &window, 1) ||
      nghttp2_submit_window_update(line->http2, 0, 0, WINDOW))
    give_up("connection");
}

/* Write until the kernel takes no more; 0 when the connection is broken or over. */
int flush_out(struct line *line) {
  for (;;) {
    const uint8_t *piece;
    ssize_t length = 1;
    int64_t at;
    while (line->filled + FRAME_BYTES <= BUFFER &&
           (length = nghttp2_session_mem_send(line->http2, &piece)) > 0) {
      memcpy(line->out + line->filled, piece, length);
      line->filled += length;
    }
    if (length < 0)
      return 0;
    if (line->written == line->filled)
      return nghttp2_session_want_read(line->http2) ||
             nghttp2_session_want_write(line->http2);
    at = since_begin(); /* before: the server may be quicker than this process */
    length = send(line->fd, line->out + line->written, line->filled - line->written,
                  MSG_NOSIGNAL);
    if (length < 0)
      return errno == EAGAIN;
    line->written += length;
    if (line->written == line->filled) {
      while (line->buffered_count) {
        struct call *call = calls[line->buffered[--line->buffered_count]];
        if (call && call->record.sent_ns < 0) /* its first attempt */
          call->record.sent_ns = at;
      }
      line->filled = line->written = 0;
    }
  }
}

/* Read all there is; 0 when the connection is broken. */
int read_in(struct line *line) {
  static uint8_t in[BUFFER];
  ssize_t length;
  while ((length = recv(line->fd, in, sizeof in, 0)) > 0)
    if (nghttp2_session_mem_recv(line->http2, in, length) < 0)
      return 0;
  return length < 0 && errno == EAGAIN;
}

/* Begin a call; 0 when the connection takes none. */
int ask(struct line *line, struct call *call) {
  void *name = name_of(call);
  struct provider body = {{.ptr = name}, read_body};
  call->line = line;
  call->stream = nghttp2_submit_request(line->http2, NULL, head, head_count, &body, name);
  return call->stream >= 0;
}

void cancel(struct call *call) {
  nghttp2_submit_rst_stream(call->line->http2, 0, call->stream, CANCEL);
}

static void add_head(const char *name, const char *value) {
  if (head_count == sizeof head / sizeof *head) {
    fprintf(stderr, "paced: too much metadata\n");
    exit(2);
  }
  head[head_count++] = (struct pair){name, value, strlen(name), strlen(value), NO_COPY};
}

void prepare_lines(char **words, int told_poller) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  static char authority[300], limit[32];
  snprintf(authority, sizeof authority, "%s:%s", words[1], words[2]);
  snprintf(limit, sizeof limit, "%sm", words[5]);
  const char *pairs[] = {":method", "POST", ":scheme", "http", ":authority", authority,
                         ":path", words[3], "te", "trailers",
                         "content-type", "application/grpc", "grpc-timeout", limit,
                         "user-agent", "tollgate-loadtests"};
  for (int i = 0; i < 8; i++)
    add_head(pairs[2 * i], pairs[2 * i + 1]);
  for (char **more = words + 12; more[0] && more[1]; more += 2)
    add_head(more[0], more[1]);
  if (getaddrinfo(words[1], words[2], &hints, &address)) {
    fprintf(stderr, "%s: no such host\n", words[1]);
    exit(3);
  }
  poller = told_poller;
  if (nghttp2_session_callbacks_new(&called))
    give_up("memory");
  nghttp2_session_callbacks_set_on_stream_close_callback(called, closed);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(called, data);
  nghttp2_session_callbacks_set_on_header_callback(called, header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(called, received);
}
