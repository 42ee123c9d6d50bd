// Package s3test runs an S3 server that is not ours, for the tests of everything that
// speaks S3: versitygw, as a program, built from its module.
package s3test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// program is no requirement of our module: it would bring a hundred others along.
const program = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

// What the server knows its only user by.
const (
	AccessKey = "s3testaccess"
	SecretKey = "s3test-secret-key"
)

// Server is one that listens on a loopback address until the test ends.
type Server struct {
	Address string // HOST:PORT
	URL     string // without a slash at the end
	Dir     string // each bucket is a folder in it, with a file for each object

	CA []byte // of StartTLS, in PEM
}

// Start runs a server with the buckets given.
func Start(t testing.TB, buckets ...string) *Server {
	t.Helper()
	return start(t, "http", nil, buckets)
}

// StartTLS is Start with https, and a certificate of nobody's.
func StartTLS(t testing.TB, buckets ...string) *Server {
	t.Helper()
	dir := t.TempDir()
	crt, key := certificate(t)
	flags := []string{}
	for name, content := range map[string][]byte{"cert": crt, "key": key} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--"+name, path)
	}
	s := start(t, "https", flags, buckets)
	s.CA = crt
	return s
}

func start(t testing.TB, scheme string, flags, buckets []string) *Server {
	t.Helper()
	program, err := executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &Server{Dir: filepath.Join(dir, "buckets")}
	sidecar := filepath.Join(dir, "sidecar") // not every file system keeps what belongs to an object in attributes
	for _, path := range append([]string{sidecar, s.Dir}, buckets...) {
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.Dir, path)
		}
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.Address = freeAddress(t)
	s.URL = scheme + "://" + s.Address
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), append(flags, "--port", s.Address, "--quiet", "--keep-alive", "posix", "--sidecar", sidecar, s.Dir)...)
	cmd.Env = []string{"ROOT_ACCESS_KEY_ID=" + AccessKey, "ROOT_SECRET_ACCESS_KEY=" + SecretKey, "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait() // it is killed
		close(ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("versitygw at %s says:\n%s", s.Address, output.Bytes())
		}
	})
	if err := listening(s.Address, ended); err != nil {
		t.Fatal(err)
	}
	return s
}

// executable is the program, open and without a name, so that nobody has to remove it.
// To build it takes a minute where nothing of it has been built before: one process at
// a time does.
var executable = sync.OnceValues(func() (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "backing-image-manager-s3test.lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "s3test")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "versitygw")
	cmd := exec.Command("go", "run", "-exec", "cp", program, path) // "run" means: cp EXECUTABLE path
	cmd.Dir = dir                                                  // not in our module
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return os.Open(path)
})

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// listening waits until somebody listens at the address.
func listening(address string, ended <-chan struct{}) error {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	late := time.After(30 * time.Second)
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ended:
			return fmt.Errorf("versitygw ended before it listened on %s", address)
		case <-late:
			return fmt.Errorf("versitygw does not listen on %s: %w", address, err)
		case <-again.C:
		}
	}
}

// Uploads returns how many uploads of several parts were begun in a bucket and not
// ended.
func (s *Server) Uploads(t testing.TB, bucket string) int {
	t.Helper()
	core, err := minio.NewCore(s.Address, &minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, "")})
	if err != nil {
		t.Fatal(err)
	}
	got, err := core.ListMultipartUploads(t.Context(), bucket, "", "", "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	return len(got.Uploads)
}

// Credentials writes a folder of credentials for the server.
func (s *Server) Credentials(t testing.TB, dir string) {
	t.Helper()
	files := map[string]string{"access-key-id": AccessKey, "secret-access-key": SecretKey, "endpoint": s.URL}
	if s.CA != nil {
		files["ca.crt"] = string(s.CA)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
