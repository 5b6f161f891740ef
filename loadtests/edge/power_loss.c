/*
 * Record what a loss of power would leave of a folder: a library for LD_PRELOAD.
 *
 * Writes go through to the files of the folder POWER_ROOT, which the process sees as
 * ever. Only what the process syncs goes to the folder POWER_SHADOW, too: the bytes of a
 * file with fsync or fdatasync of the file, its name with fsync of its folder. So after
 * a kill the shadow has every synced write and no other.
 *
 * .inodes/NUMBER in the shadow has the synced bytes of a file; a name in the shadow is a
 * hard link to it. A synced write through memory that is mapped would be missed, and
 * found missing: no store that we try makes one.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES = 4096 };

struct dirty { ino_t inode; off_t low, high; };

static char *paths[FILES];            /* by descriptor; NULL outside of the folder */
static struct dirty changed[FILES];   /* written since the last sync, by inode */
static int changed_count;
static const char *root, *shadow;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The function of the C library that one of these hides. */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void)
{
    root = getenv("POWER_ROOT");
    shadow = getenv("POWER_SHADOW");
}

static void fail(const char *what)
{
    dprintf(2, "power_loss: %s: %s\n", what, strerror(errno));
    _exit(99);
}

static int inside(const char *path)
{
    size_t size = root ? strlen(root) : 0;
    return size && strncmp(path, root, size) == 0
        && (path[size] == '/' || path[size] == 0);
}

static void inode_path(char *made, ino_t inode)
{
    snprintf(made, PATH_MAX, "%s/.inodes/%lu", shadow, (unsigned long)inode);
}

static struct dirty *dirty_of(ino_t inode)
{
    for (int i = 0; i < changed_count; i++)
        if (changed[i].inode == inode)
            return &changed[i];
    if (changed_count == FILES) {
        errno = ENFILE;
        fail("too many files");
    }
    changed[changed_count] = (struct dirty){ inode, LONG_MAX, 0 };
    return &changed[changed_count++];
}

static const char *path_of(int fd)
{
    return fd >= 0 && fd < FILES ? paths[fd] : NULL;
}

static void note(int fd, off_t low, off_t high)
{
    struct stat st;
    if (!path_of(fd) || fstat(fd, &st))
        return;
    pthread_mutex_lock(&lock);
    struct dirty *one = dirty_of(st.st_ino);
    if (low < one->low) one->low = low;
    if (high > one->high) one->high = high;
    pthread_mutex_unlock(&lock);
}

static int opened(int fd, const char *path)
{
    if (fd >= 0 && fd < FILES && inside(path)) {
        free(paths[fd]);
        paths[fd] = strdup(path);
    }
    return fd;
}

#define MODE int mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }

int open(const char *path, int flags, ...)
{ MODE return opened(REAL(open)(path, flags, mode), path); }
int open64(const char *path, int flags, ...)
{ MODE return opened(REAL(open64)(path, flags, mode), path); }
int openat(int at, const char *path, int flags, ...)
{ MODE return opened(REAL(openat)(at, path, flags, mode), path); }
int openat64(int at, const char *path, int flags, ...)
{ MODE return opened(REAL(openat64)(at, path, flags, mode), path); }

int close(int fd)
{
    if (path_of(fd)) {
        free(paths[fd]);
        paths[fd] = NULL;
    }
    return REAL(close)(fd);
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    ssize_t done = REAL(write)(fd, bytes, size);
    if (done > 0 && path_of(fd)) {
        off_t end = lseek(fd, 0, SEEK_CUR);
        note(fd, end - done, end);
    }
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at)
{
    ssize_t done = REAL(pwrite)(fd, bytes, size, at);
    if (done > 0) note(fd, at, at + done);
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at)
{
    ssize_t done = REAL(pwrite64)(fd, bytes, size, at);
    if (done > 0) note(fd, at, at + done);
    return done;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    ssize_t done = REAL(pwritev)(fd, parts, count, at);
    if (done > 0) note(fd, at, at + done);
    return done;
}

int ftruncate(int fd, off_t size)
{
    int done = REAL(ftruncate)(fd, size);
    if (!done) note(fd, size, size);
    return done;
}

int ftruncate64(int fd, off64_t size)
{
    int done = REAL(ftruncate64)(fd, size);
    if (!done) note(fd, size, size);
    return done;
}

/* The next file with this inode is another one; its synced names keep their bytes. */
static void forget(const char *path)
{
    struct stat st;
    char kept[PATH_MAX];
    if (!inside(path) || lstat(path, &st) || st.st_nlink > 1)
        return;
    inode_path(kept, st.st_ino);
    pthread_mutex_lock(&lock);
    dirty_of(st.st_ino)->low = LONG_MAX;
    dirty_of(st.st_ino)->high = 0;
    pthread_mutex_unlock(&lock);
    REAL(unlink)(kept);
}

int unlink(const char *path) { forget(path); return REAL(unlink)(path); }
int rename(const char *old, const char *new) { forget(new); return REAL(rename)(old, new); }

static int shadow_file(ino_t inode)
{
    char kept[PATH_MAX];
    inode_path(kept, inode);
    int to = REAL(open)(kept, O_WRONLY | O_CREAT, 0600);
    if (to < 0) fail(kept);
    return to;
}

static void sync_file(int fd, const struct stat *st)
{
    static char buffer[1 << 16];
    struct dirty *one = dirty_of(st->st_ino);
    int to = shadow_file(st->st_ino);
    char own[64];
    snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
    int from = REAL(open)(own, O_RDONLY, 0);
    if (from < 0) fail(own);
    off_t end = one->high < st->st_size ? one->high : st->st_size;
    for (off_t at = one->low; at < end;) {
        size_t most = end - at < (off_t)sizeof buffer ? (size_t)(end - at) : sizeof buffer;
        ssize_t size = pread(from, buffer, most, at);
        if (size <= 0 || REAL(pwrite)(to, buffer, size, at) != size) fail("copy");
        at += size;
    }
    if (REAL(ftruncate)(to, st->st_size)) fail("ftruncate");
    REAL(close)(from);
    REAL(close)(to);
    one->low = LONG_MAX;
    one->high = 0;
}

/* A kill in the middle leaves some of the new names, and none of the old ones lost. */
static void sync_names(const char *path)
{
    char there[PATH_MAX], name[PATH_MAX], kept[PATH_MAX], link_name[PATH_MAX];
    struct dirent *entry;
    struct stat st;
    snprintf(there, sizeof there, "%s%s", shadow, path + strlen(root));
    for (char *p = there + strlen(shadow) + 1; *p; p++)
        if (*p == '/') { *p = 0; mkdir(there, 0700); *p = '/'; }
    mkdir(there, 0700);
    DIR *now = opendir(path);
    if (!now) fail(path);
    while ((entry = readdir(now)))
        if (entry->d_type == DT_REG) {
            snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            if (lstat(name, &st)) continue;
            REAL(close)(shadow_file(st.st_ino));
            inode_path(kept, st.st_ino);
            snprintf(link_name, sizeof link_name, "%s/.link", there);
            snprintf(name, sizeof name, "%s/%s", there, entry->d_name);
            REAL(unlink)(link_name);
            if (link(kept, link_name) || REAL(rename)(link_name, name)) fail(name);
            REAL(unlink)(link_name);  /* where both were links to one file */
        }
    closedir(now);
    DIR *old = opendir(there);
    if (!old) fail(there);
    while ((entry = readdir(old)))
        if (entry->d_type == DT_REG) {
            snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            if (!lstat(name, &st)) continue;
            snprintf(name, sizeof name, "%s/%s", there, entry->d_name);
            REAL(unlink)(name);
        }
    closedir(old);
}

static void synced(int fd)
{
    struct stat st;
    const char *path = path_of(fd);
    if (!path || fstat(fd, &st))
        return;
    pthread_mutex_lock(&lock);
    if (S_ISDIR(st.st_mode)) sync_names(path);
    else sync_file(fd, &st);
    pthread_mutex_unlock(&lock);
}

/* A kill between the two leaves an old shadow of a file that is synced: it was not
 * acknowledged yet. */
int fsync(int fd) { int done = REAL(fsync)(fd); if (!done) synced(fd); return done; }
int fdatasync(int fd) { int done = REAL(fdatasync)(fd); if (!done) synced(fd); return done; }
