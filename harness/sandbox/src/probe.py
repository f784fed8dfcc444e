"""Tries to get out of the sandbox, and says on standard output what each try met: a JSON object, a name a try."""
import errno, json, os, resource, signal, socket, sys

given = json.load(sys.stdin)
held, saw = {}, {}


def refused(name, attempt, *expected):
    """The attempt must fail, by one of the expected errors where any are named."""
    try:
        result = attempt()
    except OSError as error:
        held[name] = not expected or error.errno in expected
        saw[name] = errno.errorcode.get(error.errno, str(error.errno))
    except MemoryError:
        held[name], saw[name] = True, "MemoryError"
    else:
        held[name], saw[name] = False, "allowed: " + repr(result)[:200]


def true(name, value, text):
    held[name], saw[name] = bool(value), str(text)


def read(path):
    with open(path, "rb") as file:
        return file.read(64)


def write(path):
    with open(path, "ab") as file:
        file.write(b"x")


def processes():
    """Starts processes until one is refused; says how many there were."""
    started, most = [], given["processes"] + 8
    try:
        while len(started) < most:
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            started.append(pid)
        return len(started)
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


true("files: the job's own are there", read("given.txt") == b"given\n", os.listdir("."))
write("written.txt")
true("files: its folder can be written", read("written.txt") == b"x", "written")
refused("files: a look at the root", lambda: os.listdir("/"), errno.EACCES)
refused("files: a file of the host", lambda: read(given["canary"]), errno.ENOENT)
refused("files: the host's users", lambda: read("/etc/passwd"), errno.ENOENT)
refused("files: processes of the host", lambda: os.listdir("/proc"), errno.ENOENT)
refused("files: devices of the host", lambda: read("/dev/kmsg"), errno.ENOENT)
refused("files: writing to the root", lambda: write("/escaped"), errno.EROFS, errno.EACCES)
refused("files: writing to the interpreter", lambda: write(sys.executable), errno.EROFS, errno.EACCES, errno.ETXTBSY)
refused("landlock: a file that nothing else protects", lambda: read(given["locked"]), errno.EACCES)
refused("network: a socket", lambda: socket.create_connection(("127.0.0.1", given["port"]), 2), errno.ENOSYS)
refused("network: a local socket", lambda: socket.socket(socket.AF_UNIX), errno.ENOSYS)
refused("processes: the harness", lambda: os.kill(given["harness"], 0), errno.ESRCH)
true("processes: a namespace of its own", os.getpid() == 2, "pid %d" % os.getpid())
refused("processes: more than the limit", processes, errno.EAGAIN)
true("privileges: nobody's ids", os.getresuid() == os.getresgid() == (1000,) * 3, os.getresuid())
refused("seccomp: becoming root", lambda: os.setuid(0), errno.ENOSYS)
refused("seccomp: another root", lambda: os.chroot("/"), errno.ENOSYS)
refused("limits: memory", lambda: len(bytearray(given["memory"])))
true("limits: CPU time", resource.getrlimit(resource.RLIMIT_CPU)[0] == given["cpu_s"], given["cpu_s"])
true("names: a host name of its own", os.uname().nodename == "sandbox", os.uname().nodename)
print(json.dumps({"held": held, "saw": saw}))
