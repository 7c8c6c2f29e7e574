/* Preloaded into the server: fails, cuts short or shifts what it asks of the kernel, as the control block says.
 *
 * The block is a file that the test maps as well. Needs no headers and links to nothing, so that a bare compiler will do.
 * Writes and flushes are those of files below FAULTS_DIRECTORY. The clock is shifted for the interpreter and its own
 * modules alone: what other libraries ask for is handed back to the kernel as a deadline, which does not jump with it.
 */
typedef long ssize_t;
typedef unsigned long size_t;
struct control {
    volatile long mode;      /* what happens: see below */
    volatile long countdown; /* calls that still go well */
    volatile long number;    /* the error that is given */
    volatile long lasting;   /* 0: once, 1: from then on */
    volatile long shift;     /* seconds that the wall clock is ahead */
    volatile long hits;      /* calls that were harmed */
    volatile long stall;     /* milliseconds that a call hangs before it is */
};
enum { NOTHING, FAIL_WRITE, FAIL_SYNC, TEAR_WRITE, FAIL_DURABLE_WRITE };
struct times { long seconds, rest; };
struct place { const char *file; void *base; const char *name; void *address; };
struct request { /* of linux/aio_abi.h */
    unsigned long data;
    unsigned key, flags;
    unsigned short operation;
    short priority;
    unsigned file;
    const void *from;
    size_t size;
    long offset;
};
struct event { unsigned long data, request; long result, second; }; /* likewise */

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
enum { WRITE = 1, PREAD = 17, PWRITE = 18, FCNTL = 72, FSYNC = 74, FDATASYNC = 75, READLINK = 267, CLOCK = 228, SLEEP = 35 };
enum { GETEVENTS = 208, SUBMIT = 209, DIRECT = 040000 };
static long kernel(long number, const long *a) {
    long answer;
    register long fourth __asm__("r10") = a[3], fifth __asm__("r8") = a[4], sixth __asm__("r9") = a[5];
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return answer;
}
#elif defined(__aarch64__)
enum { WRITE = 64, PREAD = 67, PWRITE = 68, FCNTL = 25, FSYNC = 82, FDATASYNC = 83, READLINK = 78, CLOCK = 113, SLEEP = 101 };
enum { SUBMIT = 2, GETEVENTS = 4, DIRECT = 0200000 };
static long kernel(long number, const long *a) {
    register long call __asm__("x8") = number;
    register long first __asm__("x0") = a[0], second __asm__("x1") = a[1], third __asm__("x2") = a[2];
    register long fourth __asm__("x3") = a[3], fifth __asm__("x4") = a[4], sixth __asm__("x5") = a[5];
    __asm__ volatile("svc 0" : "+r"(first) : "r"(call), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth) : "memory");
    return first;
}
#else
#error "the numbers of this architecture's system calls are not known here"
#endif

long syscall(long number, ...);

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

/* Whether each write to it is a flush, too: opened with O_DSYNC. */
static int flushes(int file) { return syscall(FCNTL, file, 3, 0) & 010000; }

/* Half of it reaches the disk: of a file of whole blocks, past the cache, half of what is new in them. */
static void tear(long call, int file, const char *data, size_t size, long offset) {
    static char before[1 << 16] __attribute__((aligned(4096)));
    if (!(syscall(FCNTL, file, 3, 0) & DIRECT)) {
        syscall(call, file, data, size / 2, offset);
    } else if (size > sizeof before || syscall(PREAD, file, before, size, offset) != (long)size) {
        syscall(call, file, data, size / 2 & ~4095ul, offset);
    } else {
        size_t first = 0, end = size;
        while (first < size && before[first] == data[first]) first++;
        while (end > first && before[end - 1] == data[end - 1]) end--;
        for (size_t place = first; place < first + (end - first) / 2; place++) before[place] = data[place];
        syscall(call, file, before, size, offset);
    }
}

/* Whether a write is to fail. */
static int harms(long call, int file, const void *data, size_t size, long offset) {
    if (strikes(file, FAIL_WRITE)) return 1;
    long mode = control()->mode;
    if ((mode == FAIL_SYNC || mode == FAIL_DURABLE_WRITE) && flushes(file) && strikes(file, mode)) {
        syscall(call, file, data, size, offset);
        return 1;
    }
    if (strikes(file, TEAR_WRITE)) {
        tear(call, file, data, size, offset);
        kill(getpid(), 9);
    }
    return 0;
}

static ssize_t put(long call, int file, const void *data, size_t size, long offset) {
    return harms(call, file, data, size, offset) ? failed() : syscall(call, file, data, size, offset);
}

static long late; /* the error of the asynchronous write that is under way */

/* Asynchronous writes have no function of their own. They are taken, and whoever asks what became of them is told. */
long syscall(long number, ...) {
    long a[6];
    __builtin_va_list rest;
    __builtin_va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = __builtin_va_arg(rest, long);
    __builtin_va_end(rest);
    if (number == SUBMIT) {
        const struct request *one = *(struct request **)a[2];
        if (harms(PWRITE, (int)one->file, one->from, one->size, one->offset)) {
            late = control()->number;
            return 1;
        }
    }
    if (number == GETEVENTS && late) {
        ((struct event *)a[3])->result = -late;
        late = 0;
        return 1;
    }
    long answer = kernel(number, a);
    if (answer >= 0 || answer < -4095) return answer;
    *__errno_location() = (int)-answer;
    return -1;
}

ssize_t write(int file, const void *data, size_t size) { return put(WRITE, file, data, size, 0); }
ssize_t pwrite(int file, const void *data, size_t size, long offset) { return put(PWRITE, file, data, size, offset); }
ssize_t pwrite64(int file, const void *data, size_t size, long offset) { return put(PWRITE, file, data, size, offset); }
int fsync(int file) { return strikes(file, FAIL_SYNC) ? (int)failed() : (int)syscall(FSYNC, file); }
int fdatasync(int file) { return strikes(file, FAIL_SYNC) ? (int)failed() : (int)syscall(FDATASYNC, file); }

int clock_gettime(int which, struct times *now) {
    long answer = syscall(CLOCK, which, now);
    if (answer == 0 && (which == 0 || which == 5) && control()->shift) {
        struct place caller;
        if (dladdr(__builtin_return_address(0), &caller) && !strstr(caller.file, "site-packages") && strstr(caller.file, "python"))
            now->seconds += control()->shift;
    }
    return (int)answer;
}
