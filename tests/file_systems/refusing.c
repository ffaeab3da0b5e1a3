/* Let a local disk refuse what file systems of clusters refuse.
 *
 * The library is loaded before the C library (LD_PRELOAD), so that a program calls the functions
 * here instead of those of the C library. Two environment variables say what they refuse:
 *
 *     REFUSED        some of flock,lockf,fsync,link,copy,permissions,space,inodes
 *     REFUSED_BELOW  the folder below which it is refused
 *
 * Anything else is passed on to the C library.
 */
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

/* The function of this name in the C library. */
#define ORIGINAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Return from a function as a failed system call does. */
#define FAIL_WITH(error) \
    do {                 \
        errno = (error); \
        return -1;       \
    } while (0)

/* Return whether a kind of system call is refused for a path. */
static int is_refused(const char *kind, const char *path) {
    const char *kinds = getenv("REFUSED");
    const char *folder = getenv("REFUSED_BELOW");
    if (kinds == NULL || folder == NULL || path == NULL) {
        return 0;
    }
    int is_below = strncmp(path, folder, strlen(folder)) == 0;
    return is_below && strstr(kinds, kind) != NULL;
}

/* Return whether a kind of system call is refused for an open file. */
static int is_refused_for_file(const char *kind, int file) {
    char link[64];
    char path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) {
        return 0;
    }
    path[length] = '\0';
    return is_refused(kind, path);
}

/* File locks: Lustre without the option `flock` has none. */

int flock(int file, int operation) {
    if (is_refused_for_file("flock", file)) {
        FAIL_WITH(ENOSYS);
    }
    return ORIGINAL(flock)(file, operation);
}

/* The C library has two functions that lock a range of a file. */
#define DEFINE_FCNTL(name)                                        \
    int name(int file, int command, ...) {                        \
        va_list arguments;                                        \
        va_start(arguments, command);                             \
        void *argument = va_arg(arguments, void *);               \
        va_end(arguments);                                        \
        int is_lock = command == F_SETLK || command == F_SETLKW;  \
        if (is_lock && is_refused_for_file("lockf", file)) {      \
            FAIL_WITH(ENOLCK);                                    \
        }                                                         \
        return ORIGINAL(name)(file, command, argument);           \
    }
DEFINE_FCNTL(fcntl)
DEFINE_FCNTL(fcntl64)

/* Folders cannot be written to the disk on request; files can. */

int fsync(int file) {
    struct stat status;
    if (is_refused_for_file("fsync", file) && fstat(file, &status) == 0) {
        if (S_ISDIR(status.st_mode)) {
            FAIL_WITH(EINVAL);
        }
    }
    return ORIGINAL(fsync)(file);
}

/* Hard links and symbolic links: FAT and some FUSE file systems have none. */

int link(const char *old_path, const char *new_path) {
    if (is_refused("link", new_path)) {
        FAIL_WITH(EPERM);
    }
    return ORIGINAL(link)(old_path, new_path);
}

int linkat(int old_folder, const char *old_path, int new_folder, const char *new_path, int flags) {
    if (is_refused("link", new_path)) {
        FAIL_WITH(EPERM);
    }
    return ORIGINAL(linkat)(old_folder, old_path, new_folder, new_path, flags);
}

int symlink(const char *target, const char *path) {
    if (is_refused("link", path)) {
        FAIL_WITH(EPERM);
    }
    return ORIGINAL(symlink)(target, path);
}

/* Copies within the kernel */

ssize_t copy_file_range(int source, off64_t *source_offset, int target, off64_t *target_offset,
                        size_t count, unsigned flags) {
    if (is_refused_for_file("copy", target)) {
        FAIL_WITH(EOPNOTSUPP);
    }
    return ORIGINAL(copy_file_range)(source, source_offset, target, target_offset, count, flags);
}

ssize_t sendfile64(int target, int source, off64_t *source_offset, size_t count) {
    if (is_refused_for_file("copy", target)) {
        FAIL_WITH(EINVAL);
    }
    return ORIGINAL(sendfile64)(target, source, source_offset, count);
}

/* Permissions and times, which only the owner of a file may set */

int chmod(const char *path, mode_t mode) {
    if (is_refused("permissions", path)) {
        FAIL_WITH(EPERM);
    }
    return ORIGINAL(chmod)(path, mode);
}

int fchmod(int file, mode_t mode) {
    if (is_refused_for_file("permissions", file)) {
        FAIL_WITH(EPERM);
    }
    return ORIGINAL(fchmod)(file, mode);
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    if (is_refused("permissions", path)) {
        FAIL_WITH(EPERM);
    }
    return ORIGINAL(utimensat)(folder, path, times, flags);
}

int futimens(int file, const struct timespec times[2]) {
    if (is_refused_for_file("permissions", file)) {
        FAIL_WITH(EPERM);
    }
    return ORIGINAL(futimens)(file, times);
}

/* Free space: some file systems report neither their size nor what is free. */

int statvfs64(const char *path, struct statvfs64 *status) {
    int result = ORIGINAL(statvfs64)(path, status);
    if (is_refused("space", path)) {
        status->f_blocks = 0;
        status->f_bfree = 0;
        status->f_bavail = 0;
    }
    return result;
}

/* Inode numbers: some FUSE file systems give a file another one in each process. */

/* Define a function that returns the status of a file, which is given by its path or by its
 * descriptor. `is_refused_for` looks up either of them. */
#define DEFINE_STAT(name, parameter, file, is_refused_for)                \
    int name(parameter, struct stat64 *status) {                          \
        int result = ORIGINAL(name)(file, status);                        \
        if (result == 0 && is_refused_for("inodes", file)) {              \
            status->st_ino ^= (ino64_t)getpid() << 20;                    \
        }                                                                 \
        return result;                                                    \
    }
DEFINE_STAT(stat64, const char *path, path, is_refused)
DEFINE_STAT(lstat64, const char *path, path, is_refused)
DEFINE_STAT(fstat64, int file, file, is_refused_for_file)
