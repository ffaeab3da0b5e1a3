/* Loaded before the C library (LD_PRELOAD), it lets a local disk refuse below the folder REFUSED_BELOW what file systems
   of clusters refuse: REFUSED lists which, as flock,lockf,fsync,link,copy,rights,room,inodes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The function that this one stands before. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSE(error) return errno = (error), -1

static int is_refused(const char *what, const char *path) {
    const char *kinds = getenv("REFUSED"), *folder = getenv("REFUSED_BELOW");
    return kinds && folder && path && strstr(kinds, what) && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_refused_of(const char *what, int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_refused(what, path);
}

int flock(int file, int operation) {
    if (is_refused_of("flock", file)) REFUSE(ENOSYS);
    return NEXT(flock)(file, operation);
}

#define FCNTL(name)                                                                                      \
    int name(int file, int command, ...) {                                                               \
        va_list arguments;                                                                               \
        va_start(arguments, command);                                                                    \
        void *argument = va_arg(arguments, void *);                                                      \
        va_end(arguments);                                                                               \
        if ((command == F_SETLK || command == F_SETLKW) && is_refused_of("lockf", file)) REFUSE(ENOLCK); \
        return NEXT(name)(file, command, argument);                                                      \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

int fsync(int file) {
    struct stat found;
    if (is_refused_of("fsync", file) && fstat(file, &found) == 0 && S_ISDIR(found.st_mode)) REFUSE(EINVAL);
    return NEXT(fsync)(file);
}

int link(const char *from, const char *to) {
    if (is_refused("link", to)) REFUSE(EPERM);
    return NEXT(link)(from, to);
}

int linkat(int above, const char *from, int beside, const char *to, int flags) {
    if (is_refused("link", to)) REFUSE(EPERM);
    return NEXT(linkat)(above, from, beside, to, flags);
}

int symlink(const char *target, const char *path) {
    if (is_refused("link", path)) REFUSE(EPERM);
    return NEXT(symlink)(target, path);
}

ssize_t copy_file_range(int from, off64_t *begin, int to, off64_t *end, size_t count, unsigned flags) {
    if (is_refused_of("copy", to)) REFUSE(EOPNOTSUPP);
    return NEXT(copy_file_range)(from, begin, to, end, count, flags);
}

ssize_t sendfile64(int to, int from, off64_t *begin, size_t count) {
    if (is_refused_of("copy", to)) REFUSE(EINVAL);
    return NEXT(sendfile64)(to, from, begin, count);
}

int chmod(const char *path, mode_t mode) {
    if (is_refused("rights", path)) REFUSE(EPERM);
    return NEXT(chmod)(path, mode);
}

int fchmod(int file, mode_t mode) {
    if (is_refused_of("rights", file)) REFUSE(EPERM);
    return NEXT(fchmod)(file, mode);
}

int utimensat(int above, const char *path, const struct timespec times[2], int flags) {
    if (is_refused("rights", path)) REFUSE(EPERM);
    return NEXT(utimensat)(above, path, times, flags);
}

int futimens(int file, const struct timespec times[2]) {
    if (is_refused_of("rights", file)) REFUSE(EPERM);
    return NEXT(futimens)(file, times);
}

int statvfs64(const char *path, struct statvfs64 *found) {
    int status = NEXT(statvfs64)(path, found);
    if (is_refused("room", path)) found->f_blocks = found->f_bfree = found->f_bavail = 0;
    return status;
}

/* Inodes are numbered anew in each process. */
#define STAT(name, from, is_here, parameter)                                                 \
    int name(parameter, struct stat64 *found) {                                              \
        int status = NEXT(name)(from, found);                                                \
        if (status == 0 && is_here("inodes", from)) found->st_ino ^= (ino64_t)getpid() << 20; \
        return status;                                                                       \
    }
STAT(stat64, path, is_refused, const char *path)
STAT(lstat64, path, is_refused, const char *path)
STAT(fstat64, file, is_refused_of, int file)
