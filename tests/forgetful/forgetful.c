// A disk that forgets: preloaded under the unmodified broker, it keeps an undo log of everything that was changed but not
// synced under one directory, so that the harness can play a power cut (tests/src/forgetful.rs replays the log backwards).
//
// Owns: the undo log and the graveyard (hard links that keep replaced and removed files alive). Knows nothing of the
// broker's formats. Called through the libc symbols below; what goes round libc (raw system calls, shared mappings,
// io_uring) is not seen, so the broker's storage must use std::fs or libc.
//
// Environment:
//   FORGETFUL_ROOT     absolute path without symlinks; only what lies under it is watched
//   FORGETFUL_STATE    directory outside the root on the same file system: `undo.log`, `graveyard/`
//   FORGETFUL_FSYNC    unset: honest; `skip`: answers success and does nothing; `late`: answers success, but only what
//                      lay there at the sync before counts. The last two are the mutants "ack before fdatasync".
//   FORGETFUL_UNDER    the lie of FORGETFUL_FSYNC holds for paths that contain this text only
//   FORGETFUL_CONTROL  a file of 4 096 bytes, mapped: byte 0 errno of writes, byte 1 errno of fsync, 0 = no fault; bytes
//                      16.. the text that a path must contain for the fault to hold, ended by 0
//
// Log record, native byte order: u32 magic, u32 kind, u64 inode, u64 a, u64 b, u32 name length, u32 data length, name, data.
//   1 data    inode of the file, a = offset, b = size of the file before; data = the bytes that stood at the offset
//   2 entry   inode of the directory, a = inode under that name before (0 = none); name
//   3 sync    inode, a = length of the log when the sync began: records of that inode before it are durable
//   4 failed  inode, a as above: those records can never become durable (a later fsync does not bring lost pages back)
//   5 blind   something this layer cannot undo was done; name says what. The harness fails the test.
// A record is written before the change it undoes: undoing what never happened does no harm.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAGIC 0x46474631u
#define CHUNK (1u << 20)
#define LATE_MAX 4096

enum kind { DATA = 1, ENTRY = 2, SYNC = 3, FAILED = 4, BLIND = 5 };

struct header {
    uint32_t magic, kind;
    uint64_t inode, a, b;
    uint32_t name_bytes, data_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root, *under;
static size_t root_bytes;
static int log_fd = -1, graveyard_fd = -1;
static enum { HONEST, SKIP, LATE } mode;
static volatile const char *control;
static struct { uint64_t inode, upto; } late[LATE_MAX];
static size_t late_count;

static void die(const char *what) {
    static const char prefix[] = "forgetful: ";
    (void)!syscall(SYS_write, 2, prefix, sizeof prefix - 1);
    (void)!syscall(SYS_write, 2, what, strlen(what));
    (void)!syscall(SYS_write, 2, "\n", 1);
    _exit(97);
}

static int real_openat(int dir, const char *path, int flags, mode_t mode_bits) {
    return (int)syscall(SYS_openat, dir, path, flags, mode_bits);
}

__attribute__((constructor)) static void start(void) {
    root = getenv("FORGETFUL_ROOT");
    const char *state = getenv("FORGETFUL_STATE");
    if (!root || !state) return;
    root_bytes = strlen(root);
    under = getenv("FORGETFUL_UNDER");
    const char *lie = getenv("FORGETFUL_FSYNC");
    if (lie && !strcmp(lie, "skip")) mode = SKIP;
    if (lie && !strcmp(lie, "late")) mode = LATE;
    int dir = real_openat(AT_FDCWD, state, O_DIRECTORY | O_CLOEXEC, 0);
    if (dir < 0) die("FORGETFUL_STATE cannot be opened");
    log_fd = real_openat(dir, "undo.log", O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    graveyard_fd = real_openat(dir, "graveyard", O_DIRECTORY | O_CLOEXEC, 0);
    if (log_fd < 0 || graveyard_fd < 0) die("undo.log or graveyard cannot be opened");
    close(dir);
    const char *path = getenv("FORGETFUL_CONTROL");
    if (path) {
        int fd = real_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
        void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) die("FORGETFUL_CONTROL cannot be mapped");
        control = map;
        close(fd);
    }
}

static bool active(void) { return log_fd >= 0; }

static bool inside(const char *path) {
    return !strncmp(path, root, root_bytes) && (path[root_bytes] == '/' || path[root_bytes] == 0);
}

// Path of an open file, if it lies under the root. The system is asked each time: no table of descriptors can go stale.
static bool path_of(int fd, char *path, size_t bytes) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, bytes - 1);
    if (n <= 0) return false;
    path[n] = 0;
    return inside(path);
}

static bool watched(int fd, struct stat *stat, char *path, size_t bytes) {
    if (!active() || fd == log_fd) return false;
    if (fstat(fd, stat) || !(S_ISREG(stat->st_mode) || S_ISDIR(stat->st_mode))) return false;
    return path_of(fd, path, bytes);
}

static int fault(int which, const char *path) {
    if (!control || !control[which]) return 0;
    char text[256];
    size_t i = 0;
    while (i < sizeof text - 1 && control[16 + i]) { text[i] = control[16 + i]; i++; }
    text[i] = 0;
    return strstr(path, text) ? control[which] : 0;
}

// Appends one record. The lock is held.
static void record(enum kind kind, uint64_t inode, uint64_t a, uint64_t b, const char *name, const void *data, size_t data_bytes) {
    size_t name_bytes = name ? strlen(name) : 0;
    struct header head = {MAGIC, kind, inode, a, b, (uint32_t)name_bytes, (uint32_t)data_bytes};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)name, name_bytes}, {(void *)data, data_bytes}};
    ssize_t n = syscall(SYS_writev, log_fd, parts, 3);
    if (n != (ssize_t)(sizeof head + name_bytes + data_bytes)) die("undo.log cannot be written");
}

static uint64_t log_bytes(void) {
    struct stat stat;
    if (fstat(log_fd, &stat)) die("undo.log cannot be read");
    return (uint64_t)stat.st_size;
}

static void blind(const char *what) {
    pthread_mutex_lock(&lock);
    record(BLIND, 0, 0, 0, what, NULL, 0);
    pthread_mutex_unlock(&lock);
}

// Saves what stands in [offset, offset + bytes) of a file. The lock is held.
static void save_range(const char *proc_path, int dir, const struct stat *stat, uint64_t offset, uint64_t bytes) {
    uint64_t size = (uint64_t)stat->st_size, end = offset + bytes < size ? offset + bytes : size;
    if (offset >= end) {
        record(DATA, stat->st_ino, offset, size, NULL, NULL, 0);
        return;
    }
    int fd = real_openat(dir, proc_path, O_RDONLY | O_CLOEXEC, 0);
    char *buffer = malloc(CHUNK);
    if (fd < 0 || !buffer) die("a file cannot be read before it is overwritten");
    while (offset < end) {
        size_t want = end - offset < CHUNK ? (size_t)(end - offset) : CHUNK;
        ssize_t n = pread(fd, buffer, want, (off_t)offset);
        if (n <= 0) die("a file cannot be read before it is overwritten");
        record(DATA, stat->st_ino, offset, size, NULL, buffer, (size_t)n);
        offset += (uint64_t)n;
    }
    free(buffer);
    close(fd);
}

static void save_fd(int fd, const struct stat *stat, uint64_t offset, uint64_t bytes) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    save_range(link, AT_FDCWD, stat, offset, bytes);
}

// Makes a write that was opened O_SYNC or O_DSYNC count at once. The lock is held.
static void settle(int fd, const struct stat *stat) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_DSYNC)) record(SYNC, stat->st_ino, log_bytes(), 0, NULL, NULL, 0);
}

static size_t iov_bytes(const struct iovec *parts, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    return bytes;
}

// ---- data ----------------------------------------------------------------------------------------------------------

static ssize_t any_write(int fd, const struct iovec *parts, int count, bool positioned, off_t offset) {
    struct stat stat;
    char path[4200];
    bool mine = watched(fd, &stat, path, sizeof path) && S_ISREG(stat.st_mode);
    if (mine) {
        int error = fault(0, path);
        if (error) { errno = error; return -1; }
        pthread_mutex_lock(&lock);
        fstat(fd, &stat);
        off_t at = offset;
        if (!positioned) {
            int flags = fcntl(fd, F_GETFL);
            at = flags >= 0 && (flags & O_APPEND) ? stat.st_size : lseek(fd, 0, SEEK_CUR);
        }
        save_fd(fd, &stat, (uint64_t)at, iov_bytes(parts, count));
    }
    ssize_t n = positioned ? syscall(SYS_pwritev, fd, parts, count, offset, 0) : syscall(SYS_writev, fd, parts, count);
    int kept = errno;
    if (mine) {
        settle(fd, &stat);
        pthread_mutex_unlock(&lock);
    }
    errno = kept;
    return n;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    struct iovec part = {(void *)data, bytes};
    if (!active()) return syscall(SYS_write, fd, data, bytes);
    return any_write(fd, &part, 1, false, 0);
}
ssize_t writev(int fd, const struct iovec *parts, int count) { return any_write(fd, parts, count, false, 0); }
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    struct iovec part = {(void *)data, bytes};
    return any_write(fd, &part, 1, true, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) { return pwrite(fd, data, bytes, offset); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return any_write(fd, parts, count, true, offset); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return any_write(fd, parts, count, true, offset); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    (void)flags;
    return any_write(fd, parts, count, offset != -1, offset);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    return pwritev2(fd, parts, count, offset, flags);
}

int ftruncate(int fd, off_t length) {
    struct stat stat;
    char path[4200];
    if (!watched(fd, &stat, path, sizeof path)) return (int)syscall(SYS_ftruncate, fd, length);
    int error = fault(0, path);
    if (error) { errno = error; return -1; }
    pthread_mutex_lock(&lock);
    fstat(fd, &stat);
    uint64_t cut = stat.st_size > length ? (uint64_t)(stat.st_size - length) : 0;
    save_fd(fd, &stat, (uint64_t)length, cut);
    int result = (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

int truncate(const char *path, off_t length) {
    int fd = real_openat(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    int result = ftruncate(fd, length);
    close(fd);
    return result;
}
int truncate64(const char *path, off64_t length) { return truncate(path, length); }

int fallocate(int fd, int how, off_t offset, off_t bytes) {
    struct stat stat;
    char path[4200];
    if (!watched(fd, &stat, path, sizeof path)) return (int)syscall(SYS_fallocate, fd, how, offset, bytes);
    int error = fault(0, path);
    if (error) { errno = error; return -1; }
    if (how & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE)) blind("fallocate that moves data");
    pthread_mutex_lock(&lock);
    fstat(fd, &stat);
    bool changes = how & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
    save_fd(fd, &stat, (uint64_t)offset, changes ? (uint64_t)bytes : 0);
    int result = (int)syscall(SYS_fallocate, fd, how, offset, bytes);
    pthread_mutex_unlock(&lock);
    return result;
}
int fallocate64(int fd, int how, off64_t offset, off64_t bytes) { return fallocate(fd, how, offset, bytes); }
int posix_fallocate(int fd, off_t offset, off_t bytes) { return fallocate(fd, 0, offset, bytes) ? errno : 0; }
int posix_fallocate64(int fd, off64_t offset, off64_t bytes) { return posix_fallocate(fd, offset, bytes); }

// Copies in the kernel are refused under the root, so that the caller copies by read and write.
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t bytes, unsigned flags) {
    struct stat stat;
    char path[4200];
    if (watched(out, &stat, path, sizeof path)) { errno = EINVAL; return -1; }
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, bytes, flags);
}
ssize_t sendfile(int out, int in, off_t *offset, size_t bytes) {
    struct stat stat;
    char path[4200];
    if (watched(out, &stat, path, sizeof path)) { errno = EINVAL; return -1; }
    return syscall(SYS_sendfile, out, in, offset, bytes);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t bytes) { return sendfile(out, in, offset, bytes); }

// ---- sync ----------------------------------------------------------------------------------------------------------

// In mode `late`: what the sync before covered. The lock is held.
static uint64_t swap_late(uint64_t inode, uint64_t upto) {
    for (size_t i = 0; i < late_count; i++) {
        if (late[i].inode == inode) {
            uint64_t before = late[i].upto;
            late[i].upto = upto;
            return before;
        }
    }
    if (late_count == LATE_MAX) die("too many files for FORGETFUL_FSYNC=late");
    late[late_count].inode = inode;
    late[late_count++].upto = upto;
    return 0;
}

static int any_sync(int fd, long number) {
    struct stat stat;
    char path[4200];
    if (!watched(fd, &stat, path, sizeof path)) return (int)syscall(number, fd);
    bool lies = mode != HONEST && (!under || strstr(path, under));
    if (lies && mode == SKIP) return 0;
    pthread_mutex_lock(&lock);
    uint64_t upto = log_bytes();
    pthread_mutex_unlock(&lock);
    int error = fault(1, path);
    int result = error ? -1 : (int)syscall(number, fd);
    int kept = error ? error : errno;
    pthread_mutex_lock(&lock);
    if (lies) upto = swap_late(stat.st_ino, upto);
    record(result ? FAILED : SYNC, stat.st_ino, upto, 0, NULL, NULL, 0);
    pthread_mutex_unlock(&lock);
    errno = kept;
    return result;
}

int fsync(int fd) { return any_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return any_sync(fd, SYS_fdatasync); }

// ---- names ---------------------------------------------------------------------------------------------------------

struct place {
    int dir;            // the parent, opened; -1 = not under the root
    uint64_t dir_inode;
    char name[256];
    struct stat stat;   // of what the name stands for
    bool exists;
};

static void close_place(struct place *place) {
    if (place->dir >= 0) close(place->dir);
}

// Finds the parent directory of a path. Leaves `dir` at -1 if that is not under the root.
static struct place find(int at, const char *path) {
    struct place place = {.dir = -1};
    if (!active() || !path || !*path) return place;
    int kept = errno;
    char parent[4200];
    size_t bytes = strlen(path);
    if (bytes >= sizeof parent) return place;
    memcpy(parent, path, bytes + 1);
    while (bytes > 1 && parent[bytes - 1] == '/') parent[--bytes] = 0;
    char *slash = strrchr(parent, '/');
    const char *name = slash ? slash + 1 : parent;
    if (strlen(name) >= sizeof place.name) return place;
    strcpy(place.name, name);
    if (slash == parent) parent[1] = 0;
    else if (slash) *slash = 0;
    else strcpy(parent, ".");
    int dir = real_openat(at, parent, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    char real[4200];
    struct stat stat;
    if (dir >= 0 && path_of(dir, real, sizeof real) && !fstat(dir, &stat)) {
        place.dir = dir;
        place.dir_inode = stat.st_ino;
        place.exists = !fstatat(dir, place.name, &place.stat, AT_SYMLINK_NOFOLLOW);
    } else if (dir >= 0) {
        close(dir);
    }
    errno = kept;
    return place;
}

// Notes what a name stands for now and keeps that file alive. The lock is held.
static void save_entry(const struct place *place) {
    if (place->dir < 0) return;
    uint64_t before = place->exists ? place->stat.st_ino : 0;
    if (place->exists && !S_ISDIR(place->stat.st_mode)) {
        char grave[32];
        snprintf(grave, sizeof grave, "%llu", (unsigned long long)before);
        if (syscall(SYS_linkat, place->dir, place->name, graveyard_fd, grave, 0) && errno != EEXIST)
            die("a file cannot be linked into the graveyard");
    }
    record(ENTRY, place->dir_inode, before, 0, place->name, NULL, 0);
}

static int any_open(int at, const char *path, int flags, mode_t bits) {
    if (!active() || !(flags & (O_CREAT | O_TRUNC))) return real_openat(at, path, flags, bits);
    if ((flags & O_TMPFILE) == O_TMPFILE) return real_openat(at, path, flags, bits);
    pthread_mutex_lock(&lock);
    struct place place = find(at, path);
    if (place.dir >= 0 && place.exists && (flags & O_TRUNC) && S_ISREG(place.stat.st_mode) && place.stat.st_size > 0)
        save_range(place.name, place.dir, &place.stat, 0, (uint64_t)place.stat.st_size);
    if (place.dir >= 0 && !place.exists && (flags & O_CREAT)) save_entry(&place);
    int fd = real_openat(at, path, flags, bits);
    int kept = errno;
    close_place(&place);
    pthread_mutex_unlock(&lock);
    errno = kept;
    return fd;
}

static mode_t mode_argument(int flags, va_list list) {
    return flags & (O_CREAT | O_TMPFILE) ? (mode_t)va_arg(list, int) : 0;
}

#define WITH_MODE(call)                         \
    va_list list;                               \
    va_start(list, flags);                      \
    mode_t bits = mode_argument(flags, list);   \
    va_end(list);                               \
    return call

int open(const char *path, int flags, ...) { WITH_MODE(any_open(AT_FDCWD, path, flags, bits)); }
int open64(const char *path, int flags, ...) { WITH_MODE(any_open(AT_FDCWD, path, flags, bits)); }
int openat(int at, const char *path, int flags, ...) { WITH_MODE(any_open(at, path, flags, bits)); }
int openat64(int at, const char *path, int flags, ...) { WITH_MODE(any_open(at, path, flags, bits)); }
int creat(const char *path, mode_t bits) { return any_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, bits); }
int creat64(const char *path, mode_t bits) { return creat(path, bits); }

static int any_rename(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    pthread_mutex_lock(&lock);
    struct place source = find(from_at, from), target = find(to_at, to);
    bool mine = source.dir >= 0 || target.dir >= 0;
    if (mine && (source.dir < 0 || target.dir < 0 || (source.exists && S_ISDIR(source.stat.st_mode)) || flags & RENAME_EXCHANGE))
        record(BLIND, 0, 0, 0, "rename of a directory, an exchange, or a rename across the root", NULL, 0);
    if (mine) {
        save_entry(&source);
        save_entry(&target);
    }
    int result = (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
    int kept = errno;
    close_place(&source);
    close_place(&target);
    pthread_mutex_unlock(&lock);
    errno = kept;
    return result;
}
int rename(const char *from, const char *to) { return any_rename(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_at, const char *from, int to_at, const char *to) { return any_rename(from_at, from, to_at, to, 0); }
int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    return any_rename(from_at, from, to_at, to, flags);
}

// Runs a call that sets or clears one name.
#define ONE_NAME(at, path, call)                \
    pthread_mutex_lock(&lock);                  \
    struct place place = find(at, path);        \
    save_entry(&place);                         \
    int result = (int)(call);                   \
    int kept = errno;                           \
    close_place(&place);                        \
    pthread_mutex_unlock(&lock);                \
    errno = kept;                               \
    return result

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    ONE_NAME(to_at, to, syscall(SYS_linkat, from_at, from, to_at, to, flags));
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int mkdirat(int at, const char *path, mode_t bits) { ONE_NAME(at, path, syscall(SYS_mkdirat, at, path, bits)); }
int mkdir(const char *path, mode_t bits) { return mkdirat(AT_FDCWD, path, bits); }
int symlinkat(const char *to, int at, const char *path) { ONE_NAME(at, path, syscall(SYS_symlinkat, to, at, path)); }
int symlink(const char *to, const char *path) { return symlinkat(to, AT_FDCWD, path); }
int unlinkat(int at, const char *path, int flags) {
    // A removed directory cannot be kept alive: its removal counts as durable.
    if (flags & AT_REMOVEDIR) return (int)syscall(SYS_unlinkat, at, path, flags);
    ONE_NAME(at, path, syscall(SYS_unlinkat, at, path, flags));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
