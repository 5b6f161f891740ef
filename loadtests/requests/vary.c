/*
 * Preloaded into h2load: sends another body with every request and keeps every
 * answer. h2load posts one file for all requests and looks at HTTP's status only;
 * here the same purchase again would be a duplicate that writes nothing, and an
 * answer's errors and degraded bits lie in the gRPC message.
 *
 * TOLLGATE_BODIES      bodies of one length, one after the other
 * TOLLGATE_BODY_BYTES  that length
 * TOLLGATE_ANSWERS     file to write: records (struct record, then `length` bytes);
 *                      loadtests/requests/recorded_answers.py reads them
 *
 * Only for one worker thread (h2load -t 1): nothing is locked.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum kind { DATA, CLOSE, STATUS, MESSAGE, SENT };

struct record {
  uint64_t time_us; /* since 1970 */
  uint64_t session;
  int32_t stream;
  uint32_t kind;
  uint32_t length;
  uint32_t code; /* of CLOSE: HTTP/2's error code */
};

/* The head of nghttp2_frame, as nghttp2.h has published it since 1.0. */
struct frame_head {
  size_t length;
  int32_t stream;
  uint8_t type, flags, reserved;
};

typedef int (*on_data)(void *, uint8_t, int32_t, const uint8_t *, size_t, void *);
typedef int (*on_close)(void *, int32_t, uint32_t, void *);
typedef int (*on_header)(void *, const struct frame_head *, const uint8_t *, size_t,
                         const uint8_t *, size_t, uint8_t, void *);

static const char *bodies;
static size_t body_bytes, body_count, offered, continued;
static const char *current;
static FILE *answers;
static on_data data_of_h2load;
static on_close close_of_h2load;
static on_header header_of_h2load;

static void give_up(const char *what) {
  perror(what);
  _exit(3);
}

static void keep(void *session, int32_t stream, enum kind kind, const void *bytes,
                 size_t length, uint32_t code) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  struct record record = {
      .time_us = (uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000,
      .session = (uint64_t)(uintptr_t)session,
      .stream = stream,
      .kind = kind,
      .length = length,
      .code = code,
  };
  if (fwrite(&record, sizeof record, 1, answers) != 1 ||
      fwrite(bytes, 1, length, answers) != length)
    give_up("TOLLGATE_ANSWERS");
}

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("TOLLGATE_BODIES");
  const char *bytes = getenv("TOLLGATE_BODY_BYTES");
  const char *out = getenv("TOLLGATE_ANSWERS");
  struct stat stat;
  int fd;
  if (!path || !bytes || !out)
    return;
  fd = open(path, O_RDONLY);
  if (fd < 0 || fstat(fd, &stat) || !stat.st_size)
    give_up(path);
  bodies = mmap(NULL, stat.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (bodies == MAP_FAILED)
    give_up(path);
  close(fd);
  body_bytes = strtoul(bytes, NULL, 10);
  body_count = stat.st_size / body_bytes;
  answers = fopen(out, "wb");
  if (!answers)
    give_up(out);
  setvbuf(answers, NULL, _IOFBF, 1 << 20);
}

__attribute__((destructor)) static void finish(void) {
  uint64_t counts[2] = {offered, continued};
  if (!answers)
    return;
  keep(NULL, 0, SENT, counts, sizeof counts, 0);
  if (fclose(answers))
    give_up("TOLLGATE_ANSWERS");
}

/* h2load calls pread for nothing else. */
ssize_t pread(int fd, void *buffer, size_t length, off_t offset) {
  (void)fd;
  if ((size_t)offset >= body_bytes)
    return 0;
  if (offset == 0)
    current = bodies + offered++ % body_count * body_bytes;
  else
    continued++; /* of a body that flow control cut; maybe not of this one */
  if (length > body_bytes - offset)
    length = body_bytes - offset;
  memcpy(buffer, current + offset, length);
  return length;
}

static int data(void *session, uint8_t flags, int32_t stream, const uint8_t *bytes,
                size_t length, void *user) {
  keep(session, stream, DATA, bytes, length, 0);
  return data_of_h2load(session, flags, stream, bytes, length, user);
}

static int closed(void *session, int32_t stream, uint32_t code, void *user) {
  keep(session, stream, CLOSE, "", 0, code);
  return close_of_h2load(session, stream, code, user);
}

static int header(void *session, const struct frame_head *head, const uint8_t *name,
                  size_t name_length, const uint8_t *value, size_t length,
                  uint8_t flags, void *user) {
  if (name_length == 11 && !memcmp(name, "grpc-status", 11))
    keep(session, head->stream, STATUS, value, length, 0);
  else if (name_length == 12 && !memcmp(name, "grpc-message", 12))
    keep(session, head->stream, MESSAGE, value, length, 0);
  return header_of_h2load(session, head, name, name_length, value, length, flags,
                          user);
}

#define SETTER(name, type, stored, ours)                                              \
  void name(void *callbacks, type callback) {                                       \
    void (*next)(void *, type) = (void (*)(void *, type))dlsym(RTLD_NEXT, #name);    \
    stored = callback;                                                                \
    next(callbacks, ours);                                                          \
  }

SETTER(nghttp2_session_callbacks_set_on_data_chunk_recv_callback, on_data,
       data_of_h2load, data)
SETTER(nghttp2_session_callbacks_set_on_stream_close_callback, on_close,
       close_of_h2load, closed)
SETTER(nghttp2_session_callbacks_set_on_header_callback, on_header, header_of_h2load,
       header)
