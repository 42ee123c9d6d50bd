// Package s3test runs versitygw, an S3 server of another project, for tests of S3 clients. The go
// command builds the server.
package s3test

import (
	"bytes"
	"context"
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

	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// The credentials of the only user of the server.
const (
	AccessKey = "s3testaccess"
	SecretKey = "s3test-secret-key"
)

// Server is an S3 server on a loopback address.
type Server struct {
	Address string // HOST:PORT
	URL     string // without a slash at the end
	Dir     string // each bucket is a folder below it, and each object is a file

	ca     []byte // in PEM; nil without TLS
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{}
}

// Start starts a server with the given buckets, which runs until the test ends.
func Start(t testing.TB, buckets ...string) *Server {
	t.Helper()
	return start(t, Run, buckets)
}

// StartTLS is like Start, but with https and a self-signed certificate.
func StartTLS(t testing.TB, buckets ...string) *Server {
	t.Helper()
	return start(t, RunTLS, buckets)
}

func start(t testing.TB, run func(string, ...string) (*Server, error), buckets []string) *Server {
	t.Helper()
	need.Programs(t, "versitygw")
	s, err := run(t.TempDir(), buckets...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("output of versitygw at %s:\n%s", s.Address, s.output.Bytes())
		}
	})
	return s
}

// Run starts a server with the given buckets, which runs until Close. Its data is in dir.
func Run(dir string, buckets ...string) (*Server, error) {
	return (&Server{}).run(dir, "http", nil, buckets)
}

// RunTLS is like Run, but with https and a self-signed certificate.
func RunTLS(dir string, buckets ...string) (*Server, error) {
	crt, key, err := certificate()
	if err != nil {
		return nil, err
	}
	flags := []string{}
	for name, content := range map[string][]byte{"cert": crt, "key": key} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
		flags = append(flags, "--"+name, path)
	}
	return (&Server{ca: crt}).run(dir, "https", flags, buckets)
}

func (s *Server) run(dir, scheme string, flags, buckets []string) (*Server, error) {
	program, err := executable()
	if err != nil {
		return nil, err
	}
	s.Dir = filepath.Join(dir, "buckets")
	sidecar := filepath.Join(dir, "sidecar") // for the metadata of objects: not every file system supports the attributes
	folders := []string{sidecar, s.Dir}
	for _, bucket := range buckets {
		folders = append(folders, filepath.Join(s.Dir, bucket))
	}
	for _, folder := range folders {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return nil, err
		}
	}
	if s.Address, err = freeport.Address("127.0.0.1"); err != nil {
		return nil, err
	}
	s.URL = scheme + "://" + s.Address
	flags = append(flags, "--port", s.Address, "--quiet", "--keep-alive", "posix", "--sidecar", sidecar, s.Dir)
	s.cmd = exec.Command(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), flags...)
	s.cmd.Env = []string{"ROOT_ACCESS_KEY_ID=" + AccessKey, "ROOT_SECRET_ACCESS_KEY=" + SecretKey, "HOME=" + dir}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // kill the server if a test panics and does not call Close
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.ended = make(chan struct{})
	go func() {
		_ = s.cmd.Wait() // returns an error because the server was killed
		close(s.ended)
	}()
	if err := listening(s.Address, s.ended); err != nil {
		s.Close()
		return nil, fmt.Errorf("%w; its output:\n%s", err, s.output.Bytes())
	}
	return s, nil
}

// Close kills the server.
func (s *Server) Close() {
	_ = s.cmd.Process.Kill() // fails if the server has ended
	<-s.ended
}

// executable is the program as an open file without a name, so that it need not be deleted. The first
// build takes a minute; a lock allows only one process at a time to build.
var executable = sync.OnceValues(func() (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("backing-image-manager-s3test-%d.lock", os.Getuid())), os.O_RDWR|os.O_CREATE, 0o600)
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
	cmd := need.Go(context.Background(), "run", "-exec", "cp", need.Versitygw, path) // "go run" executes: cp EXECUTABLE path
	cmd.Dir = dir                                                                    // outside this module
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return os.Open(path)
})

// listening waits until the address accepts connections.
func listening(address string, ended <-chan struct{}) error {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	late := time.After(time.Minute)
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

// Uploads returns the number of unfinished multipart uploads in a bucket.
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

// Credentials writes a folder with credentials for the server.
func (s *Server) Credentials(dir string) error {
	files := map[string]string{"access-key-id": AccessKey, "secret-access-key": SecretKey, "endpoint": s.URL}
	if s.ca != nil {
		files["ca.crt"] = string(s.ca)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}
