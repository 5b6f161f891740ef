/*
 * What paced.c uses of nghttp2.h, as it has been since 1.0: the header comes in a
 * package of its own, the library with h2load and curl.
 */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct nghttp2_session session;
typedef struct nghttp2_session_callbacks callbacks;
struct pair {
  const char *name, *value;
  size_t name_length, value_length;
  uint8_t flags;
};
union source { int fd; void *ptr; };
typedef ssize_t (*reader)(session *, int32_t, uint8_t *, size_t, uint32_t *,
                          union source *, void *);
struct provider { union source from; reader read; };
struct setting { int32_t id; uint32_t value; };
struct frame { size_t length; int32_t stream; uint8_t type, flags, reserved; };
enum { END_OF_BODY = 1, NO_COPY = 6, INITIAL_WINDOW_SIZE = 4, CANCEL = 8 };
enum { SETTINGS_FRAME = 4, GOAWAY_FRAME = 7, RESET = -521 };
typedef int (*on_close)(session *, int32_t, uint32_t, void *);
typedef int (*on_data)(session *, uint8_t, int32_t, const uint8_t *, size_t, void *);
typedef int (*on_header)(session *, const struct frame *, const uint8_t *, size_t,
                         const uint8_t *, size_t, uint8_t, void *);
typedef int (*on_frame)(session *, const struct frame *, void *);
int nghttp2_session_callbacks_new(callbacks **);
void nghttp2_session_callbacks_set_on_stream_close_callback(callbacks *, on_close);
void nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks *, on_data);
void nghttp2_session_callbacks_set_on_header_callback(callbacks *, on_header);
void nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks *, on_frame);
int nghttp2_session_client_new(session **, const callbacks *, void *);
void nghttp2_session_del(session *);
int nghttp2_submit_settings(session *, uint8_t, const struct setting *, size_t);
int nghttp2_submit_window_update(session *, uint8_t, int32_t, int32_t);
int nghttp2_submit_rst_stream(session *, uint8_t, int32_t, uint32_t);
int32_t nghttp2_submit_request(session *, const void *, const struct pair *, size_t,
                               const struct provider *, void *);
void *nghttp2_session_get_stream_user_data(session *, int32_t);
ssize_t nghttp2_session_mem_send(session *, const uint8_t **);
ssize_t nghttp2_session_mem_recv(session *, const uint8_t *, size_t);
int nghttp2_session_want_read(session *);
int nghttp2_session_want_write(session *);
