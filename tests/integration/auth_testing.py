"""What the tests of tokens and TLS share: token files, certificates, and servers that ask who calls."""
import re
import secrets
import signal
import subprocess

from ampd_testing import CALL_TIMEOUT_S, CHANNEL_OPTIONS, ROOT, Api, Server, eventually, grpc

ROLES = ("read", "worker", "operator", "peer")
COMMAND_TIMEOUT_S = 60


def command(bin_dir, *arguments, code=0, **options):
    """Runs one of our programs: (stdout, stderr); it must end with `code`."""
    done = subprocess.run([bin_dir / arguments[0], *arguments[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", timeout=COMMAND_TIMEOUT_S, check=False, **options)
    assert done.returncode == code, f"{arguments} ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


class TokenFile:
    """ampd's token file; `new` adds a token by ampctl and returns it."""

    def __init__(self, context):
        context.count += 1
        self.bin_dir, self.folder = context.bin_dir, context.work
        self.path = context.work / f"tokens-{context.count}"
        self.put("")

    def put(self, text):
        """Replaces the file as a whole."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o600)
        fresh.rename(self.path)

    def add(self, line):
        self.put(self.path.read_text() + line + "\n")

    def remove(self, name):
        self.put("".join(line for line in self.path.read_text().splitlines(True) if line.split()[2:3] != [name]))

    def new(self, role, name=None, *options):
        out, _ = command(self.bin_dir, "ampctl", "token", "new", role, name or role, "--append", self.path, *options)
        return out.strip()

    def client_file(self, token):
        """A file with the token for a client; to be replaced by `replace`."""
        path = self.folder / f"token-{secrets.token_hex(4)}"
        self.replace(path, token)
        return path

    @staticmethod
    def replace(path, token):
        fresh = path.with_suffix(".new")
        fresh.write_text(token + "\n")
        fresh.rename(path)


class _Kind:
    """One method of a channel, with metadata added to each call."""

    def __init__(self, inner, metadata):
        self.inner, self.metadata = inner, metadata

    def __call__(self, request, timeout=None):
        return self.inner(request, timeout=timeout, metadata=self.metadata)

    def future(self, request, timeout=None):
        return self.inner.future(request, timeout=timeout, metadata=self.metadata)


class WithToken:
    """A channel whose calls carry `authorization: VALUE` (several values: several times)."""

    def __init__(self, channel, *values):
        self.channel, self.metadata = channel, [("authorization", value) for value in values]

    def __getattr__(self, kind):
        make = getattr(self.channel, kind)
        return lambda *path, **serializers: _Kind(make(*path, **serializers), self.metadata)


def api_with(channel, token):
    return Api(WithToken(channel, f"Bearer {token}") if token else channel)


def hang_up(server, line):
    """SIGHUP, then waits for one more line of the log that has the words."""
    before = server.log().count(line)
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: server.log().count(line) > before, f"the log says {line!r}\n{server.log()[-1000:]}")


def methods_def():
    """(service, name, role needed, whether peers may as well) of each row of proto/methods.def."""
    text = (ROOT / "proto" / "methods.def").read_text()
    roles = {"ANYONE": "read", "WORKER": "worker", "OPERATOR": "operator", "PEER": "peer", "ANYONE_OR_PEER": "read"}
    for row in re.findall(r"^AMPD_METHOD\(([^)]*)\)", text, re.M):
        service, name, _, _, _, _, _, role, _ = (field.strip() for field in row.split(","))
        yield service, name, roles[role], role == "ANYONE_OR_PEER"


# ---- certificates ----

def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, timeout=COMMAND_TIMEOUT_S)


class Authority:
    """An authority that signs certificates, all in one folder."""

    KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.cert, self.key = folder, folder / "ca.crt", folder / "ca.key"
        openssl(folder, "req", "-x509", *self.KEY, "-days", "30", "-subj", "/CN=authority of a test", "-keyout", self.key,
                "-out", self.cert)

    def issue(self, name, extensions, days=30):
        """(certificate, key) of a new pair with this common name."""
        context = self.folder / secrets.token_hex(4)
        request, cert, key, ext = (context.with_suffix(end) for end in (".csr", ".crt", ".key", ".ext"))
        ext.write_text(extensions + "\n")
        openssl(self.folder, "req", *self.KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        openssl(self.folder, "x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-CAcreateserial",
                "-days", str(days), "-extfile", ext, "-out", cert)
        return cert, key

    def server(self):
        return self.issue("ampd", "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth")

    def client(self, name, alternative=None):
        extensions = "extendedKeyUsage=clientAuth"
        return self.issue(name, f"subjectAltName={alternative}\n{extensions}" if alternative else extensions)


def replace_pair(cert, key, pair):
    """Puts a new certificate and key in the place of the old ones."""
    for path, fresh in ((key, pair[1]), (cert, pair[0])):
        copy = path.with_suffix(".copy")
        copy.write_bytes(fresh.read_bytes())
        copy.rename(path)


class TlsServer(Server):
    """An ampd that speaks TLS; `connect` shows a client certificate if there is one."""

    def __init__(self, context, authority, *options, pair=None, shown=(None, None)):
        self.authority = authority
        self.cert, self.key = pair or authority.server()
        self.shown = shown
        super().__init__(context.bin_dir, context.folder(), "--cert-file", self.cert, "--key-file", self.key, *options)
        context._own.append(self)

    def credentials(self, shown=None):
        cert, key = shown or self.shown
        return grpc.ssl_channel_credentials(self.authority.cert.read_bytes(), key and key.read_bytes(),
                                            cert and cert.read_bytes())

    def connect(self, shown=None, token=None):
        credentials = self.credentials(shown)
        if token:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
        return grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, options=CHANNEL_OPTIONS)


def ready(channel, timeout_s=CALL_TIMEOUT_S):
    grpc.channel_ready_future(channel).result(timeout=timeout_s)
    return channel


def never_ready(channel, for_s=1.0):
    """The channel does not come up within this time."""
    try:
        ready(channel, for_s)
    except grpc.FutureTimeoutError:
        channel.close()
        return
    raise AssertionError("the connection came up")

