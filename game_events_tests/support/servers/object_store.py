"""The tests' hold on the server of server.py: where it is, what it shall do next, and a reader of its own."""

from __future__ import annotations

import subprocess
import sys
import uuid
from dataclasses import dataclass

import pyarrow.fs as pafs

#: Another one in each process: the JVM that they share keeps a bucket's address for as long as it lives.
BUCKET = f"lake-{uuid.uuid4().hex[:8]}"
#: Any text will do for the server; that it is found nowhere is another test's matter.
KEY, SECRET = "AKIATESTKEY", "planted-s3-secret-5d17e0"


@dataclass
class ObjectStore:
    """A running server."""

    process: subprocess.Popen[str]
    port: int

    @classmethod
    def start(cls) -> ObjectStore:
        """A server with one empty bucket."""
        command = [sys.executable, "-m", "game_events_tests.support.servers.object_store_server", KEY]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        store = cls(process, int(process.stdout.readline()))
        store.files().create_dir(BUCKET)
        return store

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def tell(self, line: str) -> str:
        """What server.py describes; returns its answer."""
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def files(self) -> pafs.S3FileSystem:
        """Arrow's own client of S3: nothing of delta-rs or Spark."""
        return pafs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def names(self, prefix: str) -> set[str]:
        """Keys of all objects below a prefix of the bucket."""
        found = self.files().get_file_info(pafs.FileSelector(f"{BUCKET}/{prefix}", recursive=True, allow_not_found=True))
        return {f.path for f in found if f.type == pafs.FileType.File}

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate()
