/* Preloaded into the server: fails, cuts short, delays or shifts system calls, as the control block says.
 *
 * The block is a file that the test maps as well. Needs no headers and links to nothing, so that a bare compiler will do.
 * Writes and flushes are those of files below FAULTS_DIRECTORY. The clock is shifted for the interpreter and its own
 * modules only: other libraries pass what they read back to the kernel as a deadline, which does not jump with it.
 */
typedef long ssize_t;
typedef unsigned long size_t;
struct control {
    volatile long mode;      /* which calls are harmed: see below */
    volatile long countdown; /* such calls that still succeed */
    volatile long number;    /* the error that is returned */
    volatile long lasting;   /* 0: once, 1: from then on */
    volatile long shift;     /* seconds that the wall clock is ahead */
    volatile long hits;      /* calls that were harmed, or are at this moment */
    volatile long stall;     /* milliseconds that a call blocks before it is harmed */
};
enum { NOTHING, FAIL_WRITE, FAIL_SYNC, TEAR_WRITE, STALL_SYNC };
struct times { long seconds, rest; };
struct place { const char *file; void *base; const char *name; void *address; };

extern long syscall(long number, ...);
extern int *__errno_location(void);
extern char *getenv(const char *name);
extern int open(const char *path, int flags, ...);
extern void *mmap(void *start, size_t length, int protection, int flags, int file, long offset);
extern char *strstr(const char *where, const char *what);
extern int strncmp(const char *a, const char *b, size_t length);
extern size_t strlen(const char *text);
extern int dladdr(const void *address, struct place *place);
extern int getpid(void);
extern int kill(int process, int number);

#if defined(__x86_64__)
enum { WRITE = 1, PWRITE = 18, FSYNC = 74, FDATASYNC = 75, READLINK = 267, CLOCK = 228, SLEEP = 35 };
#elif defined(__aarch64__)
enum { WRITE = 64, PWRITE = 68, FSYNC = 82, FDATASYNC = 83, READLINK = 78, CLOCK = 113, SLEEP = 101 };
#else
#error "the numbers of this architecture's system calls are not known here"
#endif

static struct control none, *block;
static const char *directory;

static struct control *control(void) {
    if (!block) {
        const char *path = getenv("FAULTS_CONTROL");
        int file = path ? open(path, 2) : -1;
        void *mapped = file < 0 ? (void *)-1 : mmap(0, 4096, 3, 1, file, 0);
        directory = getenv("FAULTS_DIRECTORY");
        block = mapped == (void *)-1 || !directory ? &none : mapped;
    }
    return block;
}

static int ours(int file) {
    char link[64] = "/proc/self/fd/", digits[16], path[1024];
    int length = 14, count = 0;
    do digits[count++] = '0' + file % 10; while (file /= 10);
    while (count) link[length++] = digits[--count];
    link[length] = 0;
    long size = syscall(READLINK, -100, link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return !strncmp(path, directory, strlen(directory));
}

static int strikes(int file, long mode) {
    struct control *now = control();
    if (now->mode != mode || !ours(file)) return 0;
    if (__atomic_fetch_sub(&now->countdown, 1, __ATOMIC_SEQ_CST) > 0) return 0;
    if (!now->lasting) now->mode = NOTHING;
    now->hits++;
    struct times stall = {now->stall / 1000, now->stall % 1000 * 1000000};
    syscall(SLEEP, &stall, 0);
    return 1;
}

static ssize_t failed(void) {
    *__errno_location() = (int)control()->number;
    return -1;
}

static ssize_t put(long call, int file, const void *data, size_t size, long offset) {
    if (strikes(file, FAIL_WRITE)) return failed();
    if (strikes(file, TEAR_WRITE)) {
        syscall(call, file, data, size / 2, offset);
        kill(getpid(), 9);
    }
    return syscall(call, file, data, size, offset);
}

static int flush(long call, int file) {
    if (strikes(file, FAIL_SYNC)) return (int)failed();
    strikes(file, STALL_SYNC); /* late, but it succeeds */
    return (int)syscall(call, file);
}

ssize_t write(int file, const void *data, size_t size) { return put(WRITE, file, data, size, 0); }
ssize_t pwrite(int file, const void *data, size_t size, long offset) { return put(PWRITE, file, data, size, offset); }
ssize_t pwrite64(int file, const void *data, size_t size, long offset) { return put(PWRITE, file, data, size, offset); }
int fsync(int file) { return flush(FSYNC, file); }
int fdatasync(int file) { return flush(FDATASYNC, file); }

int clock_gettime(int which, struct times *now) {
    long answer = syscall(CLOCK, which, now);
    if (answer == 0 && (which == 0 || which == 5) && control()->shift) {
        struct place caller;
        if (dladdr(__builtin_return_address(0), &caller) && !strstr(caller.file, "site-packages") && strstr(caller.file, "python"))
            now->seconds += control()->shift;
    }
    return (int)answer;
}
