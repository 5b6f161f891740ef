/* What the parts of paced.c share. */
#include <netdb.h>
#include <stdint.h>

#include "nghttp2.h"

enum { INVALID_ARGUMENT = 3 }; /* of gRPC's */

enum how { ENDED, TIMED_OUT, CONNECTION_LOST, NO_CONNECTION };

struct record {
  int64_t sent_ns, ended_ns; /* from the beginning; -1: was not sent */
  uint32_t number;
  int32_t status; /* gRPC's; -1: none came */
  uint32_t how, http2_error, body_bytes, message_bytes;
  uint32_t attempts, unused;
};

#define MESSAGE_BYTES 256 /* of gRPC's; longer ones are cut */

/* A call that has not ended. HTTP/2 knows it by number and attempt: whatever is still
 * to come of a stream that was given up finds nothing. */
struct call {
  struct record record;
  struct line *line;
  int32_t stream;
  size_t body_sent, room;
  uint8_t *answer;
  char message[MESSAGE_BYTES];
};

#define BUFFER (1 << 17)
#define FRAME_BYTES (1 << 15) /* more than one piece of mem_send */
#define BUFFERED (BUFFER / 64) /* more calls than there is room for */

struct line {
  int fd, ready;
  session *http2;
  int64_t again_ns; /* when a broken one is opened again */
  size_t filled, written;
  uint8_t out[BUFFER];
  uint32_t buffered[BUFFERED], buffered_count; /* calls that end in `out` */
};

static const int64_t MS = 1000000;

/* paced.c */
extern const uint64_t *offsets;
extern const uint8_t *bodies;
extern uint32_t submitted, oldest; /* before the oldest all have ended */
extern struct call **calls;
void give_up(const char *what);
int64_t now(void);
int64_t since_begin(void);
void attempt_failed(struct call *call, enum how how, uint32_t http2_error);
void end(struct call *call, enum how how, uint32_t http2_error);

/* line.c */
void prepare_lines(char **words, int poller);
void make(struct line *line);
void lose(struct line *line);
int flush_out(struct line *line);
int read_in(struct line *line);
int ask(struct line *line, struct call *call);
void cancel(struct call *call);
