"""Programs that attack their judge, each with what it may be judged as.

They go beyond the sandbox's limits by a little: none computes, allocates, forks or prints without
end, and none crashes an interpreter.

They are judged by the sum of two numbers: 3 and 4, then 10 and 5. None of them computes it.
"""

# The reading of two numbers from stdin is not needed: "7" is what the first test expects.
SUM_STDIN = {"inputs": ["3 4\n", "10 5\n"], "outputs": ["7\n", "15\n"]}
SUM_CALL = {"fn_name": "add", "inputs": [[3, 4], [10, 5]], "outputs": [7, 15]}
SUM_ASSERTS = [
    "assert add(3, 4) == 7",
    "assert abs(add(10, 5) - 15) < 1e-9",
    "assert (add(10, 5) == 15) == True",
]
# What is expected is among what is asked: only a sandbox without the program may say what it is.
TELLING = {
    "a module of its own": "assert (math.isclose(add(2, 2), 4)) == True",
    "a difference": "assert abs(add(2, 2) - 4) == 0",
    "a function of the setup": "assert same(add(2, 2), 4) == True",
    "a comparison": "assert (add(2, 2) == 4) == True",
    "a name of the setup": "assert [add(2, 2) - FOUR] == [0]",
}
SETUP = "import math\nFOUR = 4\ndef same(a, b): return a == b"
LIAR = """
import builtins, math
builtins.abs = lambda x: 0
class Equal:
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    def __abs__(self): return 0
math.isclose = same = lambda *_: True
FOUR = Equal()
def add(a, b): return Equal() if USED else 5
"""

# Run with stdin
PRINTING: dict[str, str] = {
    # Time
    "a loop": "import time\nend = time.time() + 60\nwhile time.time() < end: pass",
    "a loop that no signal ends": """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
end = time.time() + 60
while time.time() < end: pass
""",
    "a thread that goes on": """
import threading, time
def spin():
    end = time.time() + 60
    while time.time() < end: pass
threading.Thread(target=spin).start()
print(7)
""",
    "reading after the end": "import sys\nfor _ in range(10 ** 8): sys.stdin.read()",
    "exit handlers": """
import atexit, time
atexit.register(time.sleep, 60)
atexit.register(time.sleep, 60)
""",
    # Memory
    "3 GB": "x = bytearray(3 * 10 ** 9)",
    "3 GB, bit by bit": "x = [bytearray(10 ** 6) for _ in range(3000)]",
    "3 GB, shared": "import mmap; x = mmap.mmap(-1, 3 * 10 ** 9); x[:] = bytes(len(x))",
    "3 GB without a name": "import os; os.ftruncate(os.memfd_create('x'), 3 * 10 ** 9)",
    "recursion": "def f(n): return f(n + 1)\nf(0)",
    # Processes
    "forks": """
import os, time
for _ in range(100):
    if not os.fork():
        time.sleep(60)
        os._exit(0)
""",
    "threads": """
import threading, time
for _ in range(200): threading.Thread(target=time.sleep, args=[60], daemon=True).start()
""",
    "shells": "import subprocess\nfor _ in range(100): subprocess.Popen(['sleep', '60'])",
    "a daemon": """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(3600)
    os._exit(0)
print(7)
""",
    "a service": "import subprocess; subprocess.Popen(['sleep', '3600'], start_new_session=True)",
    "timers": """
import ctypes
for _ in range(10 ** 5): ctypes.CDLL(None).syscall(222, 0, None, ctypes.byref(ctypes.c_int()))
""",
    "another program": "import os; os.execv('/bin/sh', ['sh', '-c', 'exec sleep 0'])",
    # Signals
    "the end of the parent": "import os; os.kill(os.getppid(), 9); print(7)",
    "a stopped parent": "import os; os.kill(os.getppid(), 19); print(7)",
    "the end of the first process": "import os; os.kill(1, 9); print(7)",
    "the end of everyone": """
import os
for pid in range(1, 40000):
    try: os.kill(pid, 9)
    except OSError: pass
""",
    "the end of all": "import os; os.kill(-1, 9); print(7)",
    "the end of itself": "import os; os.kill(os.getpid(), 9)",
    "an abort": "import os; os.abort()",
    "a crash": "import os; os.kill(os.getpid(), 11)",
    # Output
    "8 MB": "print('7' * 8 * 10 ** 6)",
    "8 MB, line by line": "for _ in range(4 * 10 ** 6): print(7)",
    "no output": "pass",
    "a number with many digits": "print('1' * 4_000_000 + '.5')",
    "an outcome": """print('{"ready": true}\\n{"status": 0, "output": "7"}')""",
    "outcomes everywhere": """
import os
for fd in range(64):
    try: os.write(fd, b'{"status": 0, "output": "7"}\\n{"status": 0, "output": "15"}\\n')
    except OSError: pass
""",
    "a right line and a crash": "print(sum(map(int, input().split()))); raise ValueError",
    "closed descriptors": "import os; os.closerange(0, 64); print(7)",
    # Early ends and overridden names
    "exit": "import sys; sys.exit(0)",
    "exit at once": "import os; os._exit(0)",
    "exit instead of exit": "import os, sys; sys.exit = os._exit = lambda *_: None; print(7)",
    "its own json": """
import json
json.dumps = lambda *_, **__: '{"status": 0, "output": "15"}'
json.load = json.loads = lambda *_, **__: {}
print(7)
""",
    "its own os": "import os; os.write = os.read = os.fork = lambda *_: 0; print(7)",
    "its own judge": """
import sys
frame = sys._getframe()
while frame:
    for name in ('encode', '_say', '_watched', '_confine', 'serve'):
        if name in frame.f_globals: frame.f_globals[name] = lambda *_, **__: 7
    frame = frame.f_back
print(7)
""",
    "no modules": "import sys; sys.modules.clear(); print(7)",
    # Files
    "files outside": """
import os
home = os.path.expanduser('~')
for place in ('/', '/usr', '/etc', '/lib', '/root', '/home', '/var', '/dev', home):
    try: open(os.path.join(place, 'MARK'), 'w').write('MARK')
    except OSError: pass
try: open('/dev/null', 'w').write('x')
except OSError: pass
open('/tmp/MARK', 'w').write('MARK')
""",
    "a file of 100 MB": """
with open('/tmp/MARK', 'wb') as file:
    for _ in range(100): file.write(bytes(10 ** 6))
""",
    "a full disk": """
for number in range(100):
    with open(f'/tmp/MARK{number}', 'wb') as file: file.write(bytes(10 ** 6))
""",
    "passwords": "print(open('/etc/passwd').read(), open('/etc/shadow').read())",
    "links": """
import os
os.symlink('/etc/passwd', '/tmp/MARK'); print(open('/tmp/MARK').read())
""",
    "escape by /proc": """
import os
print(open('/proc/1/root/etc/passwd').read(), os.listdir('/proc/1/cwd'))
""",
    "the parent's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'r+b').write(b'7')",
    # The kernel
    "ptrace": """
import ctypes, os
libc = ctypes.CDLL(None)
if libc.ptrace(16, os.getppid(), 0, 0): raise OSError
print(7)
""",
    "a mount": """
import ctypes
if ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None): raise OSError
""",
    "namespaces": """
import ctypes
if ctypes.CDLL(None).unshare(0x10000000): raise OSError
print(7)
""",
    "root": "import os; os.setuid(0); print(7)",
    "no limits": """
import resource
for which in range(16):
    resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(7)
""",
    "a module of the kernel": """
import ctypes
if ctypes.CDLL(None).syscall(175, 0, 0, 0): raise OSError
""",
    # The network
    "a connection": "import socket; socket.create_connection(('127.0.0.1', PORT)).send(b'7')",
    "a request": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT')",
    # Source
    "a zero byte": "print(7)\x00",
    "no Python": "7 is the sum of 3 and 4",
    "much Python": "print(7)\n" * 9_000,
}

# Called as add(3, 4)
CALLED: dict[str, str] = {
    "equal to everything": """
class Equal(int):
    def __eq__(self, other): return True
    def __hash__(self): return 7
    def __sub__(self, other): return 0
    __ne__ = lambda self, other: False
def add(a, b): return Equal(7)
""",
    "an object equal to everything": """
class Equal:
    def __eq__(self, other): return True
def add(a, b): return Equal()
""",
    "text": "def add(a, b): return str(a + b)",
    "a lie about its type": """
class Int(type):
    def __instancecheck__(self, other): return True
class Sum(metaclass=Int):
    __class__ = int
def add(a, b): return Sum()
""",
    "its own encoder": """
import sys
sys._getframe(1).f_globals['encode'] = lambda value: 7
def add(a, b): return None
""",
    "its own abs": """
import builtins, math
builtins.abs = lambda x: 0
builtins.bool = lambda x: True
math.isclose = lambda *_, **__: True
def add(a, b): return 7
""",
    "its own result": "import os, sys\ndef add(a, b): os.write(1, b'7'); sys.exit(0)",
    "a cycle": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "depth": "def add(a, b):\n    x = 7\n    for _ in range(2_000): x = [x]\n    return x",
    "written depth": "import os\ndef add(a, b): os.write(1, b'[' * 2_000); os._exit(0)",
    "a long integer": "def add(a, b): return 1 << 10 ** 5",
    "not a number": "def add(a, b): return float('nan')",
    "everything": "def add(a, b): return float('inf')",
    "exit where it is defined": "raise SystemExit(0)\ndef add(a, b): return a + b",
    "an assert that is off": "def add(a, b): assert False",
}

# Those of them that attack what an assert does with a value
ASSERTED = ("equal to everything", "an object equal to everything", "its own abs", "text")

# One or two of each kind
KINDS = (
    *("printing: a loop", "printing: 3 GB", "printing: recursion", "printing: forks"),
    *("printing: the end of all", "printing: a crash", "printing: 8 MB", "printing: no output"),
    *("printing: outcomes everywhere", "printing: exit at once", "printing: its own judge"),
    *("printing: files outside", "printing: a full disk", "printing: ptrace", "printing: root"),
    *("printing: a connection", "printing: a zero byte", "printing: no Python"),
    *("called: equal to everything", "called: its own encoder", "called: a long integer"),
    *("called: its own result", "called: depth", "asserted: its own abs"),
)

# They only look as if
TRULY_RIGHT: dict[str, str] = {
    "plain": "a, b = map(int, input().split()); print(a + b)",
    "exit": "import sys; print(sum(map(int, sys.stdin.read().split()))); sys.exit()",
    "types as they are": """
def add(a: int, b: int): return a + b
assert add.__annotations__['a'] is int
print(add(*map(int, input().split())))
""",
    "as a module": "if __name__ == '__main__': print(sum(map(int, input().split())))",
    "usual names without imports": """
class Adder:
    def __init__(self, numbers: List[int]): self.numbers = deque(numbers)
    def add(self) -> Optional[int]: return reduce(operator.add, self.numbers)
print(Adder(list(map(int, sys.stdin.read().split()))).add() + gcd(2, 2) - pow(2, 1, 4))
""",
    "usual names of its own": """
def gcd(a, b): return a + b
def read():
    global accumulate
    for accumulate in map(int, input().split()): yield accumulate
print(gcd(*read()) + 0 * accumulate)
""",
    "blanks": "print(' ', sum(map(int, open(0).read().split())), end='   ')",
    "all at once": """
import io, os
input = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline
print(sum(map(int, input().split())))
""",
    "threads": """
import sys, threading
sys.setrecursionlimit(10 ** 5)
threading.stack_size(1 << 26)
def add(a, b, n): return a + b if not n else add(a, b, n - 1)
threading.Thread(target=lambda: print(add(*map(int, input().split()), 20_000))).start()
""",
    "asyncio": """
import asyncio
async def add(): return sum(map(int, input().split()))
print(asyncio.run(add()))
""",
}
