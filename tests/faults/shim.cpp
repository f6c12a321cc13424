/// @file
/// Preloaded into `ferry`. It counts the calls that can fail, from main on, and lets one of them fail; or it logs what is
/// done to files, for a disk that loses power. Environment variables control it:
///   FERRY_FAULT_STATE  a file of State's size: what was counted, and what failed
///   FERRY_FAULT        KIND N ERRNO [REST]: the Nth call of that kind fails so; REST: and all after it
///   FERRY_FAULT_LOG    a file to which every change in the folder FERRY_FAULT_ROOT is appended
/// Kinds: memory; io; short (half of what is read or written); thread; ring (io_uring_enter and its set-up); completion
/// (what io_uring brings); hang (a read never comes back).
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
// glibc's own functions, on which the replacements are built, since asking the dynamic linker would allocate.
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

enum Kind : unsigned { memory, io, cut, thread, ring, completion, hang, kinds };
constexpr const char* kind_names[kinds] = {"memory", "io", "short", "thread", "ring", "completion", "hang"};

/// As the driver reads it.
struct State {
  std::atomic<std::uint64_t> count[kinds];
  std::atomic<std::uint64_t> failed;  ///< calls that were made to fail
  char call[32], path[480];           ///< of the first call that was made to fail
};
static_assert(sizeof(State) == 8 * (kinds + 1) + 512);

State own;
State* state = &own;
unsigned wanted = kinds;  // the kind of call that is to fail
std::uint64_t at = 0;
int error_number = EIO;
bool rest = false;
std::atomic<bool> counting = false;
int log_file = -1;
char root[PATH_MAX];
pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

void read_environment() {
  if (const char* file = std::getenv("FERRY_FAULT_STATE")) {
    const auto fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC));
    const long mapped = ::syscall(SYS_mmap, nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0 && mapped > 0) state = reinterpret_cast<State*>(mapped);
    ::syscall(SYS_close, fd);
  }
  char kind[16] = "", more[8] = "";
  unsigned long long n = 0;
  const char* fault = std::getenv("FERRY_FAULT");
  if (fault != nullptr && std::sscanf(fault, "%15s %llu %d %7s", kind, &n, &error_number, more) >= 3) {
    for (unsigned k = 0; k < kinds; ++k) wanted = std::strcmp(kind, kind_names[k]) == 0 ? k : wanted;
    at = n;
    rest = std::strcmp(more, "REST") == 0;
  }
  if (const char* file = std::getenv("FERRY_FAULT_LOG")) {
    log_file = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    const char* folder = std::getenv("FERRY_FAULT_ROOT");
    std::snprintf(root, sizeof(root), "%s/", folder == nullptr ? "" : folder);
  }
}

/// The path behind a descriptor; empty if it has none.
void name_of(int fd, char* to, std::size_t size) {
  char link[32];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const long n = ::syscall(SYS_readlinkat, AT_FDCWD, link, to, size - 1);
  to[n > 0 ? n : 0] = '\0';
}

/// Whether this call is to fail. `path` or `fd` tells on which file.
bool fails(Kind kind, const char* call, const char* path = nullptr, int fd = -1) {
  if (!counting) return false;
  const std::uint64_t n = ++state->count[kind];
  if (kind != wanted || (rest ? n < at : n != at)) return false;
  if (state->failed++ == 0) {
    std::snprintf(state->call, sizeof(state->call), "%s", call);
    if (path != nullptr) std::snprintf(state->path, sizeof(state->path), "%s", path);
    if (path == nullptr && fd >= 0) name_of(fd, state->path, sizeof(state->path));
  }
  errno = error_number;
  return true;
}

void never_return(int fd, const char* call) {
  if (!fails(hang, call, nullptr, fd)) return;
  for (;;) ::syscall(SYS_pause);
}

/// Half of the bytes, if this call is to be cut short.
std::size_t shortened(const char* call, int fd, std::size_t bytes) {
  return bytes > 1 && fails(cut, call, nullptr, fd) ? bytes / 2 : bytes;
}

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

// The log: what was done, to which inode, at which place, with a path or the bytes.

class Logging {
 public:
  Logging() {
    if (log_file >= 0) ::pthread_mutex_lock(&log_lock);
  }
  ~Logging() {
    if (log_file >= 0) ::pthread_mutex_unlock(&log_lock);
  }
  Logging(const Logging&) = delete;
  Logging& operator=(const Logging&) = delete;
};

void note(const char* what, std::uint64_t inode, std::uint64_t where, const char* path, const void* data = nullptr,
          std::size_t bytes = 0) {
  const int before = errno;
  char head[PATH_MAX + 100];
  const int n = std::snprintf(head, sizeof(head), "%s %llu %llu %zu %s\n", what, static_cast<unsigned long long>(inode),
                              static_cast<unsigned long long>(where), bytes, path);
  const iovec parts[] = {{head, static_cast<std::size_t>(n)}, {const_cast<void*>(data), bytes}};
  ::syscall(SYS_writev, log_file, parts, data == nullptr ? 1 : 2);
  errno = before;
}

struct Open {
  char path[PATH_MAX];
  struct stat info {};
  bool inside = false;  ///< below the root

  explicit Open(int fd) {
    if (log_file < 0) return;
    const int before = errno;
    name_of(fd, path, sizeof(path));
    inside = std::strncmp(path, root, std::strlen(root)) == 0 || std::strncmp(path, root, std::strlen(root) - 1) == 0;
    if (inside) ::syscall(SYS_newfstatat, fd, "", &info, AT_EMPTY_PATH);
    errno = before;
  }
};

bool inside(const char* path, char* whole) {
  if (log_file < 0) return false;
  if (path[0] == '/') {
    std::snprintf(whole, PATH_MAX, "%s", path);
  } else {
    char here[PATH_MAX];
    if (::syscall(SYS_getcwd, here, sizeof(here)) < 0) return false;
    std::snprintf(whole, PATH_MAX, "%.2000s/%.2000s", here, path);
  }
  return std::strncmp(whole, root, std::strlen(root)) == 0;
}

void note_open(int fd, int flags) {
  const Open file(fd);
  if (!file.inside || !S_ISREG(file.info.st_mode)) return;
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    note("new", file.info.st_ino, 0, "");
  } else {
    if ((flags & O_CREAT) != 0) note("create", file.info.st_ino, 0, file.path);
    if ((flags & O_TRUNC) != 0) note("truncate", file.info.st_ino, 0, "");
  }
}

void note_write(int fd, std::uint64_t where, const void* data, long bytes) {
  const Open file(fd);
  if (bytes > 0 && file.inside) note("write", file.info.st_ino, where, "", data, static_cast<std::size_t>(bytes));
}

std::uint64_t place_of(int fd) {
  if (log_file < 0) return 0;
  const Open file(fd);
  const long flags = ::syscall(SYS_fcntl, fd, F_GETFL);
  if (flags > 0 && (flags & O_APPEND) != 0) return static_cast<std::uint64_t>(file.info.st_size);
  return static_cast<std::uint64_t>(::syscall(SYS_lseek, fd, 0, SEEK_CUR));
}

int (*real_main)(int, char**, char**) = nullptr;

int counted_main(int argc, char** argv, char** environment) {
  counting = true;
  return real_main(argc, argv, environment);
}

int opened(int folder, const char* path, int flags, mode_t mode) {
  if (fails(io, "open", path)) return -1;
  const Logging lock;
  const auto fd = static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
  if (fd >= 0) note_open(fd, flags);
  return fd;
}

ssize_t get(int fd, void* to, std::size_t bytes, std::int64_t where, const char* call) {
  never_return(fd, call);
  if (fails(io, call, nullptr, fd)) return -1;
  bytes = shortened(call, fd, bytes);
  return where < 0 ? ::syscall(SYS_read, fd, to, bytes) : ::syscall(SYS_pread64, fd, to, bytes, where);
}

ssize_t put(int fd, const void* from, std::size_t bytes, std::int64_t where, const char* call) {
  if (fails(io, call, nullptr, fd)) return -1;
  bytes = shortened(call, fd, bytes);
  const Logging lock;
  const std::uint64_t to = where < 0 ? place_of(fd) : static_cast<std::uint64_t>(where);
  const ssize_t n = where < 0 ? ::syscall(SYS_write, fd, from, bytes) : ::syscall(SYS_pwrite64, fd, from, bytes, where);
  note_write(fd, to, from, n);
  return n;
}

int synced(int fd, long call, const char* name) {
  if (fails(io, name, nullptr, fd)) return -1;
  const Logging lock;
  const auto result = static_cast<int>(::syscall(call, fd));
  const Open file(fd);
  if (result == 0 && file.inside) note(S_ISDIR(file.info.st_mode) ? "sync-folder" : "sync", file.info.st_ino, 0, "");
  return result;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int __libc_start_main(int (*main_function)(int, char**, char**), int argc, char** argv, void (*begin)(), void (*end)(),
                      void (*loader_end)(), void* stack_end) {
  read_environment();
  real_main = main_function;
  using Start = int (*)(int (*)(int, char**, char**), int, char**, void (*)(), void (*)(), void (*)(), void*);
  return next<Start>("__libc_start_main")(counted_main, argc, argv, begin, end, loader_end, stack_end);
}

// Memory

void* malloc(size_t bytes) {
  return fails(memory, "malloc") ? nullptr : __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  return fails(memory, "calloc") ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  return fails(memory, "realloc") ? nullptr : __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return fails(memory, "aligned_alloc") ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** to, size_t alignment, size_t bytes) {
  if (fails(memory, "posix_memalign")) return error_number;
  *to = __libc_memalign(alignment, bytes);
  return *to == nullptr ? ENOMEM : 0;
}
void* mmap(void* where, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 ? fails(io, "mmap", nullptr, fd) : fails(memory, "mmap")) return MAP_FAILED;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, where, bytes, protection, flags, fd, offset));
}
void* mmap64(void* where, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return mmap(where, bytes, protection, flags, fd, offset);
}

// Files

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened(folder, path, flags, mode);
}
FILE* fopen(const char* path, const char* how) {
  if (fails(io, "fopen", path)) return nullptr;
  return next<FILE* (*)(const char*, const char*)>("fopen")(path, how);
}
FILE* fopen64(const char* path, const char* how) {
  return fopen(path, how);
}
ssize_t read(int fd, void* to, size_t bytes) {
  return get(fd, to, bytes, -1, "read");
}
ssize_t pread(int fd, void* to, size_t bytes, off_t where) {
  return get(fd, to, bytes, where, "pread");
}
ssize_t pread64(int fd, void* to, size_t bytes, off_t where) {
  return get(fd, to, bytes, where, "pread");
}
ssize_t write(int fd, const void* from, size_t bytes) {
  return put(fd, from, bytes, -1, "write");
}
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t where) {
  return put(fd, from, bytes, where, "pwrite");
}
ssize_t pwrite64(int fd, const void* from, size_t bytes, off_t where) {
  return put(fd, from, bytes, where, "pwrite");
}
ssize_t writev(int fd, const iovec* parts, int count) {
  ssize_t all = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t n = parts[i].iov_len == 0 ? 0 : put(fd, parts[i].iov_base, parts[i].iov_len, -1, "writev");
    if (n < 0) return all > 0 ? all : -1;
    all += n;
    if (static_cast<size_t>(n) < parts[i].iov_len) break;
  }
  return all;
}
size_t fwrite(const void* from, size_t size, size_t count, FILE* file) {
  if (file == stdout && fails(io, "fwrite", "standard output")) return 0;
  return next<size_t (*)(const void*, size_t, size_t, FILE*)>("fwrite")(from, size, count, file);
}
int fflush(FILE* file) {
  if (file == stdout && fails(io, "fflush", "standard output")) return EOF;
  return next<int (*)(FILE*)>("fflush")(file);
}
int close(int fd) {
  const bool failed = fails(io, "close", nullptr, fd);
  const auto result = static_cast<int>(::syscall(SYS_close, fd));
  if (failed) errno = error_number;
  return failed ? -1 : result;
}
int fsync(int fd) {
  return synced(fd, SYS_fsync, "fsync");
}
int fdatasync(int fd) {
  return synced(fd, SYS_fdatasync, "fdatasync");
}
int ftruncate(int fd, off_t bytes) {
  if (fails(io, "ftruncate", nullptr, fd)) return -1;
  const Logging lock;
  const auto result = static_cast<int>(::syscall(SYS_ftruncate, fd, bytes));
  const Open file(fd);
  if (result == 0 && file.inside) note("truncate", file.info.st_ino, static_cast<std::uint64_t>(bytes), "");
  return result;
}
int ftruncate64(int fd, off_t bytes) {
  return ftruncate(fd, bytes);
}
int fallocate(int fd, int mode, off_t where, off_t bytes) {
  if (fails(io, "fallocate", nullptr, fd)) return -1;
  const Logging lock;
  const auto result = static_cast<int>(::syscall(SYS_fallocate, fd, mode, where, bytes));
  const Open file(fd);
  if (result == 0 && file.inside) note("grow", file.info.st_ino, static_cast<std::uint64_t>(where + bytes), "");
  return result;
}
int fallocate64(int fd, int mode, off_t where, off_t bytes) {
  return fallocate(fd, mode, where, bytes);
}
int rename(const char* from, const char* to) {
  if (fails(io, "rename", to)) return -1;
  const Logging lock;
  char a[PATH_MAX], b[PATH_MAX];
  struct stat info {};
  const bool noted = inside(from, a) && inside(to, b) && ::syscall(SYS_newfstatat, AT_FDCWD, from, &info, 0) == 0;
  const auto result = static_cast<int>(::syscall(SYS_rename, from, to));
  if (result == 0 && noted) {
    note("enter", info.st_ino, 1, b);  // one step together with the next note
    note("remove", info.st_ino, 0, a);
  }
  return result;
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  if (fails(io, "linkat", to)) return -1;
  const Logging lock;
  const auto result = static_cast<int>(::syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
  char path[PATH_MAX];
  struct stat info {};
  if (result == 0 && inside(to, path) && ::syscall(SYS_newfstatat, AT_FDCWD, path, &info, 0) == 0) {
    note("enter", info.st_ino, 0, path);
  }
  return result;
}
int unlink(const char* path) {
  const Logging lock;
  const auto result = static_cast<int>(::syscall(SYS_unlink, path));
  char whole[PATH_MAX];
  if (result == 0 && inside(path, whole)) note("remove", 0, 0, whole);
  return result;
}
int unlinkat(int folder, const char* path, int flags) {
  return folder == AT_FDCWD && flags == 0 ? unlink(path)
                                          : static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}

// Threads and the ring

int pthread_create(pthread_t* made, const pthread_attr_t* attributes, void* (*work)(void*), void* argument) {
  if (fails(thread, "pthread_create")) return error_number;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  return next<Create>("pthread_create")(made, attributes, work, argument);
}
int io_uring_queue_init(unsigned entries, io_uring* made, unsigned flags) {
  if (fails(ring, "io_uring_queue_init")) return -error_number;
  return next<int (*)(unsigned, io_uring*, unsigned)>("io_uring_queue_init")(entries, made, flags);
}
int io_uring_submit_and_wait(io_uring* of, unsigned count) {
  static const auto real = next<int (*)(io_uring*, unsigned)>("io_uring_submit_and_wait");
  if (fails(ring, "io_uring_enter")) return -error_number;
  unsigned seen = *of->cq.khead;
  const int result = real(of, count);
  for (; seen != *of->cq.ktail; ++seen) {
    io_uring_cqe& done = of->cq.cqes[seen & *of->cq.kring_mask];
    if (fails(completion, "io_uring completion")) done.res = -error_number;
    if (fails(cut, "io_uring completion") && done.res > 4096) done.res /= 2;
    if (fails(hang, "io_uring completion")) {
      for (;;) ::syscall(SYS_pause);
    }
  }
  return result;
}

}  // extern "C"
