package script

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
)

var upstreamCommands = []command{
	{name: "serve", args: "VAR DIR", min: 2, max: 2, run: serve,
		doc: "Serves the current files below DIR over HTTP, and sets $VAR to the URL. A folder is its index.html. A URL can request a fault, as package `fetchtest` documents: `$VAR/image.raw?fault=cut&at=4096&times=1`."},
	{name: "requests", args: "VAR PATTERN N|N+", asserts: true, min: 3, max: 3, run: requests,
		doc: "Asserts the number of received requests (N+: N or more) of the server of $VAR that match the regular expression. A request has the form `GET /image.raw?fault=cut range=bytes=4096- status=206 sent=1024`."},
	{name: "sent-bytes", args: "VAR <|=|> SIZE", asserts: true, min: 3, max: 3, run: sentBytes,
		doc: "Compares the number of content bytes that the server of $VAR has sent."},
	{name: "clear-requests", args: "VAR", min: 1, max: 1, run: clearRequests,
		doc: "Removes the requests that the server of $VAR has recorded."},
	{name: "s3", args: "VAR CREDENTIALS BUCKET...", min: 3, max: -1, run: serveS3,
		doc: "Runs an S3 server (versitygw) until the script ends, writes the folder CREDENTIALS for it, and sets $VAR_URL to the URL. Sets $VAR to a folder that contains a folder for each bucket, with a file for each object."},
}

// upstream serves the files of a folder through a server that injects faults on request.
type upstream struct {
	*fetchtest.Server
	dir string

	mu   sync.Mutex
	open map[string]*openFile
}

type openFile struct {
	*os.File
	info os.FileInfo
}

func (f *openFile) Size() int64 { return f.info.Size() }

// ServeHTTP serves the current content of a file.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.refresh(r.URL.Path)
	u.Server.ServeHTTP(w, r)
}

// refresh opens the file again if it was replaced or changed.
func (u *upstream) refresh(path string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name := filepath.Join(u.dir, filepath.Clean(path))
	if strings.HasSuffix(path, "/") {
		name = filepath.Join(name, "index.html")
	}
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	before := u.open[path]
	if before != nil && os.SameFile(before.info, info) && before.info.ModTime().Equal(info.ModTime()) && before.Size() == info.Size() {
		return
	}
	f, err := os.Open(name)
	if err != nil {
		return
	}
	u.open[path] = &openFile{f, info} // the previous file stays open, because requests may still read it
	u.Serve(path, u.open[path])
}

// close closes the server and its files.
func (u *upstream) close(s *httptest.Server) {
	s.CloseClientConnections()
	s.Close()
	for _, f := range u.open {
		f.Close()
	}
}

// newUpstream starts a server.
func newUpstream(dir string) (*upstream, *httptest.Server) {
	u := &upstream{Server: fetchtest.New(), dir: dir, open: map[string]*openFile{}}
	return u, httptest.NewServer(u)
}

func serve(s script, args []string) error {
	u, server := newUpstream(s.MkAbs(args[1]))
	s.Defer(func() { u.close(server) })
	s.upstreams[args[0]] = u
	s.Setenv(args[0], server.URL)
	return nil
}

func (s script) upstream(name string) *upstream {
	u := s.upstreams[name]
	if u == nil {
		s.Fatalf("there is no server %s", name)
	}
	return u
}

func requests(s script, args []string) error {
	match, err := regexp.Compile(args[1])
	s.Check(err)
	n := 0
	var all []string
	for _, r := range s.upstream(args[0]).Requests() {
		uri := strings.TrimSuffix(r.Path+"?"+r.Query, "?")
		all = append(all, fmt.Sprintf("%s %s range=%s status=%d sent=%d", r.Method, uri, r.Range, r.Status, r.Sent))
		if match.MatchString(all[len(all)-1]) {
			n++
		}
	}
	least, more := strings.CutSuffix(args[2], "+")
	count, err := strconv.Atoi(least)
	s.Check(err)
	if n < count || !more && n > count {
		return fmt.Errorf("%d requests match %q; want %s; all requests:\n%s", n, args[1], args[2], strings.Join(all, "\n"))
	}
	return nil
}

func sentBytes(s script, args []string) error {
	var sum int64
	for _, r := range s.upstream(args[0]).Requests() {
		sum += r.Sent
	}
	return compare("the number of bytes sent", float64(sum), args[1], args[2], s.size)
}

func clearRequests(s script, args []string) error {
	s.upstream(args[0]).ClearRequests()
	return nil
}

func serveS3(s script, args []string) error {
	need.Programs(s.t, "versitygw")
	dir := s.MkAbs(args[0])
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	server, err := s3test.Run(dir, args[2:]...)
	if err != nil {
		return err
	}
	s.Defer(server.Close)
	s.Setenv(args[0], server.Dir)
	s.Setenv(args[0]+"_URL", server.URL)
	return server.Credentials(s.MkAbs(args[1]))
}
