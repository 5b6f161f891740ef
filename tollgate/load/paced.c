/*
 * An open loop of gRPC calls: each is sent when it is due, whatever became of the ones
 * before it. compiled.py writes what this reads and reads what this writes.
 *
 *   paced HOST PORT PATH CONNECTIONS TIMEOUT_MS RETRIES DUE OFFSETS BODIES ANSWERS
 *         ALONE_MS [NAME VALUE]...
 *
 * DUE      int64 [N]: when each is due, ns from the beginning, ascending
 * OFFSETS  uint64 [N + 1]: where its body begins in BODIES; the last: where all end
 * BODIES   gRPC bodies, one after the other
 * ANSWERS  to write: struct record, then `body_bytes` and `message_bytes` of it, for
 *          each call, in the order of their ends
 * NAME, VALUE  metadata of every call
 *
 * Prints "begin NS" (CLOCK_MONOTONIC) shortly before the first is due. Calls take the
 * connections in turn; one that broke is opened again, and what was on its way there has
 * failed. A call is sent when its last byte is given to the kernel; until then it may
 * wait for the server's flow control or for a processor. An attempt ends TIMEOUT_MS
 * after it was due; one that failed is repeated at once, up to RETRIES times, unless
 * the server says that the request is wrong.
 *
 * ALONE_MS other than 0: no open loop, but one call after the other, each when the one
 * before has ended, until so much time is over. DUE then only says how many there are.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "paced.h"

static const int64_t SETTLE_NS = 50 * 1000000, PATIENCE_NS = 3000 * 1000000ll;

const uint64_t *offsets;
const uint8_t *bodies;
uint32_t submitted, oldest;
struct call **calls;

static const int64_t *due;
static uint32_t count;
/* Attempts in the order of their beginnings, and so nearly of their ends. */
static struct attempt {
  uint32_t number, attempt;
  int64_t until_ns;
} *attempts;
static size_t started, watched;

static struct line *lines;
static int line_count, turn, poller, clock_fd;
static uint32_t retries;
static int64_t begin_ns, timeout_ns, alone_ns;
static FILE *answers;

void give_up(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(3);
}

int64_t now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (int64_t)at.tv_sec * 1000 * MS + at.tv_nsec;
}

int64_t since_begin(void) { return now() - begin_ns; }

static struct call *new_call(uint32_t number) {
  struct call *call = calloc(1, sizeof *call);
  if (!call)
    give_up("memory");
  call->record.number = number;
  call->record.status = -1;
  call->record.sent_ns = -1;
  calls[number] = call;
  return call;
}

void end(struct call *call, enum how how, uint32_t http2_error) {
  struct record *record = &call->record;
  record->how = how;
  record->http2_error = http2_error;
  record->ended_ns = since_begin();
  if (fwrite(record, sizeof *record, 1, answers) != 1 ||
      fwrite(call->answer, 1, record->body_bytes, answers) != record->body_bytes ||
      fwrite(call->message, 1, record->message_bytes, answers) != record->message_bytes)
    give_up("ANSWERS");
  calls[record->number] = NULL;
  free(call->answer);
  free(call);
}

static struct line *next_line(void) {
  for (int tries = 0; tries < line_count; tries++) {
    struct line *line = &lines[turn++ % line_count];
    if (line->ready)
      return line;
  }
  return NULL;
}

/* Send a call, or send it again; 0 when there is no connection for it. */
static int try(struct call *call, int64_t from_ns) {
  struct line *line = next_line();
  struct attempt *attempt = &attempts[started];
  call->record.attempts++;
  call->record.status = -1;
  call->record.body_bytes = call->record.message_bytes = 0;
  call->body_sent = 0;
  if (!line || !ask(line, call))
    return 0;
  attempt->number = call->record.number;
  attempt->attempt = call->record.attempts;
  attempt->until_ns = from_ns + timeout_ns;
  started++;
  return 1;
}

void attempt_failed(struct call *call, enum how how, uint32_t http2_error) {
  if (call->record.status == INVALID_ARGUMENT || call->record.attempts > retries)
    end(call, how, http2_error);
  else if (!try(call, since_begin()))
    end(call, NO_CONNECTION, 0);
}

static void submit(uint32_t number, int64_t due_ns, int64_t at) {
  struct call *call = new_call(number);
  submitted = number + 1;
  if (at >= due_ns + timeout_ns)
    end(call, TIMED_OUT, 0);
  else if (!try(call, due_ns))
    end(call, NO_CONNECTION, 0);
}

/* Send the next one if there is none on its way. */
static void submit_alone(int64_t at) {
  if (at >= alone_ns)
    count = submitted;
  if (submitted < count && oldest == submitted)
    submit(submitted, at, at);
}

static void expire(int64_t at) {
  for (; watched < started && attempts[watched].until_ns <= at; watched++) {
    struct call *call = calls[attempts[watched].number];
    if (!call || call->record.attempts != attempts[watched].attempt)
      continue;
    cancel(call);
    attempt_failed(call, TIMED_OUT, 0);
  }
  while (oldest < submitted && !calls[oldest])
    oldest++;
}

static void wait_until(int64_t at) {
  struct itimerspec when = {.it_value = {at / (1000 * MS), at % (1000 * MS)}};
  struct epoll_event events[16];
  uint64_t rung;
  int found;
  if (timerfd_settime(clock_fd, TFD_TIMER_ABSTIME, &when, NULL))
    give_up("timer");
  found = epoll_wait(poller, events, 16, -1);
  for (int i = 0; i < found; i++) {
    struct line *line = events[i].data.ptr;
    if (!line)
      (void)!read(clock_fd, &rung, sizeof rung);
    else if (line->http2 && (!read_in(line) || !flush_out(line)))
      lose(line);
  }
}

/* Do what is to be done at this moment; when there is something again. */
static int64_t step(int64_t at) {
  int64_t next_ns = INT64_MAX;
  if (begin_ns) {
    while (!alone_ns && submitted < count && begin_ns + due[submitted] <= at)
      submit(submitted, due[submitted], at - begin_ns);
    expire(at - begin_ns);
    if (alone_ns && at >= begin_ns)
      submit_alone(at - begin_ns);
    else if (submitted < count)
      next_ns = begin_ns + (alone_ns ? 0 : due[submitted]);
    if (watched < started && begin_ns + attempts[watched].until_ns < next_ns)
      next_ns = begin_ns + attempts[watched].until_ns;
  }
  for (struct line *line = lines; line < lines + line_count; line++) {
    if (line->fd < 0 && line->again_ns <= at)
      make(line);
    if (line->http2 && !flush_out(line))
      lose(line);
    if (line->again_ns < next_ns)
      next_ns = line->again_ns;
  }
  return next_ns;
}

static int ready_lines(void) {
  int ready = 0;
  for (int i = 0; i < line_count; i++)
    ready += lines[i].ready;
  return ready;
}

static const void *map(const char *path, size_t *length) {
  struct stat stat;
  int fd = open(path, O_RDONLY);
  void *at;
  if (fd < 0 || fstat(fd, &stat))
    give_up(path);
  *length = stat.st_size;
  at = mmap(NULL, *length, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (at == MAP_FAILED)
    give_up(path);
  close(fd);
  return at;
}

static void set_up(char **words) {
  struct epoll_event event = {.events = EPOLLIN};
  size_t length;
  line_count = atoi(words[4]);
  timeout_ns = atoll(words[5]) * MS;
  retries = atoi(words[6]);
  due = map(words[7], &length);
  count = length / sizeof *due;
  offsets = map(words[8], &length);
  bodies = map(words[9], &length);
  answers = fopen(words[10], "wb");
  if (!answers || setvbuf(answers, NULL, _IOFBF, 1 << 20))
    give_up(words[10]);
  alone_ns = atoll(words[11]) * MS;
  calls = calloc(count, sizeof *calls);
  attempts = calloc((size_t)count * (retries + 1), sizeof *attempts);
  lines = calloc(line_count, sizeof *lines);
  poller = epoll_create1(0);
  clock_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  if (!calls || !attempts || !lines || poller < 0 || clock_fd < 0 ||
      epoll_ctl(poller, EPOLL_CTL_ADD, clock_fd, &event))
    give_up("beginning");
  prepare_lines(words, poller);
  for (int i = 0; i < line_count; i++)
    lines[i].fd = -1;
}

int main(int word_count, char **words) {
  int64_t until_ns;
  if (word_count < 12 || word_count % 2) {
    fprintf(stderr, "paced: wrong number of arguments\n");
    return 2;
  }
  set_up(words);
  until_ns = now() + PATIENCE_NS;
  while (ready_lines() < line_count) {
    int64_t next_ns = step(now());
    if (now() > until_ns) {
      fprintf(stderr, "no answer from %s:%s\n", words[1], words[2]);
      return 3;
    }
    if (ready_lines() < line_count)
      wait_until(next_ns < until_ns ? next_ns : until_ns);
  }
  begin_ns = now() + SETTLE_NS;
  printf("begin %lld\n", (long long)begin_ns);
  fflush(stdout);
  for (;;) {
    int64_t next_ns = step(now());
    if (submitted == count && oldest == count)
      break;
    wait_until(next_ns);
  }
  if (fclose(answers))
    give_up(words[10]);
  return 0;
}
