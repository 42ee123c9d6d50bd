package upload

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// TestNewerRequestSupersedesOlder checks that a request that continues an upload aborts a blocked
// request.
func TestNewerRequestSupersedesOlder(t *testing.T) {
	r := newFixture(t)
	want := testImage(3, 2<<20)
	at := r.create(fmt.Sprint(len(want)))
	body, hanging := io.Pipe()
	first := make(chan response)
	go func() {
		first <- r.request("PATCH", at, body, "Content-Type: "+bodyType, "Upload-Offset: 0")
	}()
	if _, err := hanging.Write(want[:1500]); err != nil {
		t.Fatal(err)
	}
	for !r.isServed(at) {
		runtime.Gosched()
	}
	a := r.request("HEAD", at, nil)
	a.want(t, 200, "")
	offset, err := a.offset()
	if err != nil || offset > 1500 {
		t.Fatalf("the offset is %d: %v", offset, err)
	}
	r.patch(at, fmt.Sprint(offset), want[offset:]).want(t, 204, "")
	if a := <-first; a.status != 409 {
		t.Errorf("the aborted request got %d %s", a.status, a.body)
	}
	hanging.Close()
	r.wantImage(want)
}

// TestPanicOfRequestEndsUpload: the server of the API recovers from a panic of a request. The job, which waits for the partial
// file that the request had, must end nevertheless.
func TestPanicOfRequestEndsUpload(t *testing.T) {
	r := newFixture(t)
	one := r.sessions.find(strings.TrimPrefix(r.create("1048576"), Path+"/"))
	func() {
		defer func() {
			if recover() != any("a bug") {
				t.Error("the panic is lost")
			}
		}()
		_ = one.use(t.Context(), nil, func(*disk.Part) (broken, end error) { panic("a bug") })
	}()
	r.jobs.Wait()
	if r.outcome == nil || !strings.Contains(r.outcome.Error(), "the log has the reason") {
		t.Errorf("the job ended with %v", r.outcome)
	}
}

func TestStalledBodyIsAborted(t *testing.T) {
	r := newFixture(t)
	r.window = 500 * time.Millisecond // the first bytes must arrive before
	at := r.create("1048576")
	body, silent := io.Pipe()
	defer silent.Close()
	a := r.request("PATCH", at, io.MultiReader(strings.NewReader("begun"), body), "Content-Type: "+bodyType, "Upload-Offset: 0")
	a.want(t, 408, "stalled")
	if a := r.request("HEAD", at, nil); a.header.Get("Upload-Offset") != "5" {
		t.Errorf("the received bytes were not kept: %v", a.header)
	}
	// The server must not wait forever for a body that it does not read.
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PATCH %s/nothing HTTP/1.1\r\nHost: x\r\nTus-Resumable: 1.0.0\r\nContent-Type: %s\r\nUpload-Offset: 0\r\nContent-Length: 9\r\n\r\n", Path, bodyType)
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, "404") {
		t.Errorf("the response is %q: %v", line, err)
	}
}

func TestUploadContinuesAfterRestart(t *testing.T) {
	r := newFixture(t)
	want := testImage(4, 5<<20)
	sum := sha512.Sum512(want)
	at := r.create(fmt.Sprint(len(want)), named+",filename eA==,checksum "+base64.StdEncoding.EncodeToString([]byte(hex.EncodeToString(sum[:]))))
	r.patch(at, "0", want[:3<<20+100]).want(t, 204, "")
	r.stopJob()
	r.request("HEAD", at, nil).want(t, 423, "")
	r.patch(at, "3145828", want[3<<20+100:]).want(t, 423, "resumes soon")
	client := Client{Base: r.url, Transport: http.DefaultTransport}
	if _, _, err := client.status(t.Context(), at); err == nil || !strings.Contains(err.Error(), "when the problem in the status") {
		t.Errorf("the client of an interrupted upload got %v", err)
	}
	r.restart()
	r.waitOpen(strings.TrimPrefix(at, Path+"/"))
	a := r.request("HEAD", at, nil)
	a.want(t, 200, "")
	if a.header.Get("Upload-Offset") != fmt.Sprint(3<<20) || !strings.Contains(a.header.Get("Upload-Metadata"), "filename eA==") {
		t.Errorf("after a restart the response to HEAD is %v", a.header)
	}
	r.patch(at, fmt.Sprint(3<<20), want[3<<20:]).want(t, 204, "")
	r.wantImage(want)
}

func TestExpiredUploadIsDiscarded(t *testing.T) {
	r := newFixture(t)
	at := r.create("2097152")
	r.patch(at, "0", bytes.Repeat([]byte{1}, 1<<20)).want(t, 204, "")
	r.stopJob()
	part := filepath.Join(r.path, "backing-images", parrot.String(), "backing.part")
	old := time.Now().Add(-sessionTTL - time.Minute)
	if err := os.Chtimes(part, old, old); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.jobs.Wait()
	if err := r.stopJob(); !IsDiscarded(err) {
		t.Errorf("the job ended with %v", err)
	}
	r.wantEmptyDisk()
	r.request("HEAD", at, nil).want(t, 410, "")
}

// TestForgottenUploadExpires runs with synthetic time.
func TestForgottenUploadExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		if _, err := disk.Init(path); err != nil {
			t.Fatal(err)
		}
		d, err := disk.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		part, err := d.OpenPart(t.Context(), parrot, disk.PartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer part.Close()
		sessions := NewSessions()
		one, err := sessions.create(metadata{Name: parrot.Name}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		began, ended := time.Now(), make(chan error)
		go func() { ended <- one.Fill(t.Context(), part, 0, &fetch.Progress{}) }()
		<-one.opened
		time.Sleep(sessionTTL - time.Hour)
		if err := one.use(t.Context(), nil, func(*disk.Part) (broken, end error) { return nil, nil }); err != nil { // a query does not delay the expiry of an upload
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		if err := one.append(ctx, cancel, &delivery{zeros: true, length: 512, total: -1}); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !IsDiscarded(err) || time.Since(began) != 2*sessionTTL-time.Hour {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestDeferredLengthSurvivesRestart: a client sends the length of the image only once, so the daemon
// must keep it across restarts.
func TestDeferredLengthSurvivesRestart(t *testing.T) {
	r := newFixture(t)
	want := testImage(15, 3<<20)
	a := r.request("POST", Path, nil, "Upload-Defer-Length: 1", named)
	a.want(t, 201, "")
	at := a.header.Get("Location")
	r.patch(at, "0", want[:1<<20]).want(t, 204, "")
	r.patch(at, fmt.Sprint(1<<20), want[1<<20:2<<20], fmt.Sprintf("Upload-Length: %d", len(want))).want(t, 204, "")
	r.restart()
	r.waitOpen(strings.TrimPrefix(at, Path+"/"))
	a = r.request("HEAD", at, nil)
	if a.header.Get("Upload-Length") != fmt.Sprint(len(want)) || a.header.Get("Upload-Offset") != fmt.Sprint(2<<20) {
		t.Errorf("after a restart the response to HEAD is %v", a.header)
	}
	r.patch(at, fmt.Sprint(2<<20), want[2<<20:]).want(t, 204, "")
	if all := r.sessions.list(); len(all) > 0 {
		t.Fatalf("all bytes were received, but the upload waits: %+v", all)
	}
	r.wantImage(want)
}
