package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// origins are those of one script, by the variables with their addresses.
type origins map[string]*origin

type originsKey struct{}

// origin serves the files of a folder through a server that misbehaves on request.
type origin struct {
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

// ServeHTTP serves a file as it is now.
func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.refresh(r.URL.Path)
	o.Server.ServeHTTP(w, r)
}

func (o *origin) refresh(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	info, err := os.Stat(filepath.Join(o.dir, filepath.Clean(path)))
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	had := o.open[path]
	if had != nil && os.SameFile(had.info, info) && had.info.ModTime().Equal(info.ModTime()) && had.Size() == info.Size() {
		return
	}
	f, err := os.Open(filepath.Join(o.dir, filepath.Clean(path)))
	if err != nil {
		return
	}
	o.open[path] = &openFile{f, info} // requests may still read what it was before
	o.Serve(path, o.open[path])
}

// serve starts an origin, see script_test.go.
func serve(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: serve VAR [DIR]")
	}
	o := &origin{Server: fetchtest.New(), dir: ts.MkAbs("."), open: map[string]*openFile{}}
	if len(args) == 2 {
		o.dir = ts.MkAbs(args[1])
	}
	listening := httptest.NewServer(o)
	ts.Defer(func() {
		listening.CloseClientConnections()
		listening.Close()
		for _, f := range o.open {
			f.Close()
		}
	})
	ts.Value(originsKey{}).(origins)[args[0]] = o
	ts.Setenv(args[0], listening.URL)
}

func originOf(ts *testscript.TestScript, name string) *origin {
	o := ts.Value(originsKey{}).(origins)[name]
	if o == nil {
		ts.Fatalf("no origin %s was started with serve", name)
	}
	return o
}

// requests counts what an origin was asked, see script_test.go.
func requests(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: requests VAR PATTERN N|N+")
	}
	ts.Check(countRequests(originOf(ts, args[0]), args[1], args[2]))
}

func countRequests(o *origin, pattern, want string) error {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	n := 0
	var all []string
	for _, r := range o.Requests() {
		uri := strings.TrimSuffix(r.Path+"?"+r.Query, "?")
		all = append(all, fmt.Sprintf("%s %s range=%s status=%d sent=%d", r.Method, uri, r.Range, r.Status, r.Sent))
		if match.MatchString(all[len(all)-1]) {
			n++
		}
	}
	least, more := strings.CutSuffix(want, "+")
	count, err := strconv.Atoi(least)
	if err != nil || n < count || !more && n > count {
		return fmt.Errorf("%d requests match %q, want %s; all of them:\n%s", n, pattern, want, strings.Join(all, "\n"))
	}
	return nil
}

func forget(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: forget VAR")
	}
	originOf(ts, args[0]).Forget()
}

// sendHTTP sends one request, see script_test.go.
func sendHTTP(ts *testscript.TestScript, args []string, body, headers io.Writer) error {
	transport, args := presenting(ts, args)
	if len(args) < 2 {
		ts.Fatalf("usage: http [--tls DIR/[NAME]] METHOD URL [HEADER: VALUE]...")
	}
	r, err := http.NewRequest(args[0], args[1], nil)
	ts.Check(err)
	for _, h := range args[2:] {
		name, value, _ := strings.Cut(h, ":")
		r.Header.Set(name, strings.TrimSpace(value))
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: transport}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	fmt.Fprintln(headers, answer.Proto, answer.Status)
	answer.Header.Write(headers)
	if err := copyTo(body, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s", args[0], args[1], answer.Status)
	}
	return nil
}
